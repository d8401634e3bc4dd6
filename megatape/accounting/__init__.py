"""Parameters, FLOPs, memory and traffic of a configuration, computed from shapes alone.

* A `Workload` (workload.py) is what one rank computes for a micro-batch. A `TrainingLayout` (layout.py) adds micro-batches and
  sharding. Every function takes one of these, or the sections that it needs.
* parameters.py and flops.py count a whole model, checkpoint_size.py and kv_cache.py what it writes and caches.
* memory.py adds up a rank's memory (memory_parts.py): training state and activations (activation_memory.py). activations.py
  counts the latter by running a model without data (saved_tensors.py).
* traffic.py adds up the bytes that a rank sends: the model's own collectives (model_traffic.py, node_traffic.py) and ZeRO's.
* Both run a rank's share of the model (rank_model.py) on the meta device (trace.py, meta_device.py), simulate which weights
  ZeRO stage 3 gathers (gathered_weights.py), and add whole-matrix updates (whole_matrices.py). Shallow models on short samples
  are extrapolated (extrapolation.py).
* fitting_change.py advises a run that lacks memory, and gpus.py has the data sheets of GPUs.
"""

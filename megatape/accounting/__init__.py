"""Parameters, FLOPs, memory and traffic of a configuration, computed from shapes alone.

* A `Workload` (workload.py) is the computation of one rank for a micro-batch, and a `TrainingLayout` (layout.py) all of them,
  with the division of the training state. Every function takes one of these, or the sections that it needs.
* parameters.py and flops.py count a whole model. checkpoint_size.py and kv_cache.py give the sizes of what it writes and
  caches.
* memory.py adds up the memory of a rank (memory_parts.py): its state, and the activations of activation_memory.py, which
  activations.py counts by running a model without data (saved_tensors.py).
* traffic.py adds up the bytes that a rank sends: those of the model's own collectives (model_traffic.py, node_traffic.py),
  and those of ZeRO.
* Both need a rank's share of the model (rank_model.py), run on the meta device (trace.py, meta_device.py), the weights that
  ZeRO stage 3 gathers meanwhile (gathered_weights.py), and the updates of whole matrices (whole_matrices.py). Shallow models
  on short samples are extrapolated (extrapolation.py).
* fitting_change.py advises a run that lacks memory, and gpus.py has the data sheets of GPUs.
"""

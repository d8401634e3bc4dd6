"""Parameters, FLOPs, memory and traffic of a configuration, computed from shapes alone.

workload.py       `Workload`: what one rank computes for a micro-batch
layout.py         `TrainingLayout`: a workload with micro-batches and sharding. Functions take one of these, or sections
element_sizes.py  bytes per element of the training state
gpus.py           data sheets of GPUs
whole_model/      parameters and FLOPs of a whole model, and the sizes of its checkpoints and caches
shapes/           runs a rank's share of a model on shapes, in place of deep models shallow ones
sharding/         what sharding adds: the weights that ZeRO stage 3 gathers, and updates of whole matrices
memory/           memory of a rank, and the change that lets a run fit
traffic/          bytes that a rank sends

memory/ and traffic/ import sharding/, and all of them import shapes/ and whole_model/.
"""

"""Wrappers of blocks, attention and MLP: subclasses that compute steps of the equations in another way.

They are for ranks that share the model or a sample, for saving memory, and for torch.compile. They add no modules, so
parameters keep their names. model/build.py combines them, in one order.

* tensor_parallel.py: attention and MLP of tensor-parallel ranks; sequence_parallel.py: blocks and attention of ranks that hold
  parts of the samples.
* gathering.py: blocks whose weights ZeRO stage 3 gathers together.
* memory.py: blocks and MLP that save memory by rebuilding, recomputing or chunking.
* compilation.py: blocks compiled by torch.compile.
"""

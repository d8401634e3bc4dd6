"""Wrappers of blocks, attention and MLP: subclasses that compute steps of the equations in another way.

They are for ranks that share the model or a sample, for saving memory, and for torch.compile. They add no modules, so
parameters keep their names. model/build.py combines them, in one order.
"""

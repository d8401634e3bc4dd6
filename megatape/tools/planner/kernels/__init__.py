"""GPU operations of a training step, counted by running the model on shapes.

operations.py      an operation: kind of kernel, FLOPs and bytes, derived from an operator call
counting.py        counts the operations of a block of code
step_work.py       the operations of one rank's forward and backward pass
compiled_parts.py  the parts of a model that torch.compile fuses, and how fusing them changes the operations
fusion.py          the operations of a function that torch.compile fuses
"""

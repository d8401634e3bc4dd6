"""Causal attention over content and position state: backends, rotation and biases.

Where to look:

* attend.py: the operation, and selecting its backend; backend.py: interface of backends.
* backends/: the backends, a file each. blocked/ computes attention by blocks of rows in plain PyTorch, also around a ring.
* bias.py: bias that encodings add to scores; windows.py: sliding windows; block_masks.py: blocks that flex_attention skips.
* rotation.py: rotation of queries and keys; rotating_backend.py: backends that rotate first, by our kernels where they can.
* split_values.py: values and position state in several calls, for backends that limit the width.
* shifted.py: shifted sparse attention; shifted_limits.py: settings that it excludes.
* kernels/: our Triton kernels; fa4/: FlashAttention-4.
"""

"""Attention by the package flash-attn-4 (FlashAttention-4) in one pass over content and position state.

Where to look:

* package.py: the package's functions and versions; tiles.py: tiles for values that are wider than queries.
* operators.py: attention with rotation as an operator of PyTorch, forward and backward.
* documents.py: packed documents in the form that the package expects.
"""

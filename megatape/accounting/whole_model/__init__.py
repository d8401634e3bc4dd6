"""Counts for a whole model, without ranks.

parameters.py       parameters
flops.py            FLOPs of a forward pass, by formulas
checkpoint_size.py  bytes of a checkpoint
kv_cache.py         bytes of an exported model's cache
"""

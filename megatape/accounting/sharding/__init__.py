"""Gathered weights and updates of whole matrices, if ranks share the training state.

gathered_weights.py  weights that ZeRO stage 3 gathers, prefetches and releases
whole_matrices.py    state, FLOPs and traffic of optimizers that update whole matrices
"""

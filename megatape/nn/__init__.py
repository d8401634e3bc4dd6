"""Layers: linear (tensor-parallel, LoRA, FP8), norms, dropout, loss; their parameters and rematerialization."""

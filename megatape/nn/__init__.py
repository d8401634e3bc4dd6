"""Layers: linear (tensor-parallel, LoRA, FP8), vocabulary, norms, dropout and loss; parameters and rematerialization."""

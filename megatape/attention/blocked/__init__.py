"""Attention by blocks of rows in plain PyTorch, also around a ring of context-parallel ranks."""

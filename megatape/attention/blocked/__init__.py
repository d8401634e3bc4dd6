"""Attention in blocks of rows by PyTorch alone, also over a ring of context-parallel ranks."""

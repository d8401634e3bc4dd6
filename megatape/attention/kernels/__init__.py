"""Triton kernels of attention and rotation."""

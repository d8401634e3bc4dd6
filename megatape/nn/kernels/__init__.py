"""Triton kernel of the loss, and launching all of our kernels."""

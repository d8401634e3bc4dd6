"""Triton kernels of the loss and the position update, and launching them."""

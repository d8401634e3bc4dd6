"""Benchmark of kernels, training steps and serving on a GPU: parts, and the processes that measure them."""

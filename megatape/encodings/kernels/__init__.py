"""Triton kernels of position encodings. Their plain counterparts are in the encodings' files."""

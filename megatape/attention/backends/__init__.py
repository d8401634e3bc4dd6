"""Implementations of causal attention, a file each. megatape/registry.py lists them."""

"""Cleaning rules. RULES in megatape/registry.py lists them. To add one, write a file here and a line there."""

"""Where documents come from: one file for each kind of source, selected by name through megatape/registry.py."""

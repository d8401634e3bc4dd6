"""Comparing encodings on text or addition problems."""

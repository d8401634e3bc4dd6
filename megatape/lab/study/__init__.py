"""Experiments: shift stability, comparisons of encodings, fine-tuning, and the suite of synthetic tasks."""

"""Benchmarks of training processes with several ranks: their memory, and saving and restoring their state."""

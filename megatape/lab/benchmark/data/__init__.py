"""Benchmarks of data: reading samples, preparing a corpus, and finding duplicates."""

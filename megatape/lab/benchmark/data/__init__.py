"""Benchmarks of data: reading samples, preparing a corpus, and finding duplicates.

loader.py       reading training samples
preparation.py  preparing a corpus
duplicates.py   finding duplicates among forged hashes
"""

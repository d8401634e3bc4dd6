"""Batches of samples.

batch.py              a batch, as tensors
positions.py          positions of its tokens
loader.py             batches for training
evaluation_reader.py  batches for evaluation
"""

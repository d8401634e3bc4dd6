"""Reads, checks and writes the weight files in model folders.

model_weights.py         interface for weights in any kind of folder: start here
checkpoint.py            interface of the checkpoints that can be exported, and a parameter check
checkpoint_weights.py    implements it for checkpoints
folder_weights.py        implements it for transformers folders, translating names with ../families/
tensor_headers.py        names, shapes and dtypes of the tensors in a transformers folder, read without the tensors
weight_files.py          writes the weights of an export, shard by shard
"""

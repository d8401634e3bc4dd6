"""Reads token ids from shards.

reader.py       the shards of a split, each read verified (verifier.py)
shard_file.py   open shards
cache.py        copies of shards on a node's disk
data_folder.py  a data directory by path or URL
"""

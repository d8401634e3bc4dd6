"""Runs one rank's share of a model on shapes, without memory for tensors or other processes.

meta_device.py    tensors without memory
rank_model.py     one rank's share of a model
module_events.py  hooks recording when modules use their weights
trace.py          runs a micro-batch, or a shallow model in place of a deep one
extrapolation.py  counts of a large run, from shallow models and short samples
"""

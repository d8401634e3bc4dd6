"""Measured figures, and how tables show them.

timing.py       times of an action and its baseline in the same rounds
peak_memory.py  peak bytes of tensors
utilization.py  FLOPs and their share of the device's peak
cells.py        ratios, times and sizes as table cells
"""

"""Measured figures, and how tables show them.

measurement.py  records of measured figures, and their form in JSON
timing.py       times of an action and its baseline in the same rounds
peak_memory.py  peak bytes of tensors
utilization.py  FLOPs and their share of the device's peak
targets.py      our targets, and whether a measurement or estimate meets them
cells.py        ratios, times and sizes as table cells
"""

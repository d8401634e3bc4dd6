"""Benchmarks: speed and memory of models, data and training.

efficiency.py, loader.py, memory.py, preparation.py, roofline.py, serving.py
              a benchmark each, of the command `megatape benchmark NAME`: `report` yields paragraphs, made of typed results
gpu/          the benchmark of a GPU, in parts (gpu/parts.py): each measures in a process of its own, records typed results in
              results.jsonl, and makes its table from them

Ratios to a baseline are measured in the same rounds (timing.py) and formatted by `ratio_cell` (cells.py). estimates.py has the
planner's estimates of steps, targets.py the targets, utilization.py the model FLOPs utilization, models.py the shapes.
"""

"""Benchmarks of training processes with several ranks: their memory, and saving and restoring their state.

rank_processes.py  starts the ranks, a process each
memory.py          resident memory of each rank
saves.py           time of saving and restoring
"""

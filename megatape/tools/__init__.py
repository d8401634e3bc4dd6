"""Tools around a run: planner/ estimates speed and memory, cluster/ submits, checks and restarts jobs.

ledger.py proves the samples that a run has trained on, branch.py lets a run decay from a checkpoint, and average.py averages
checkpoints. Training imports none of these.
"""

"""Tools around a run: planner/ estimates speed and memory, cluster/ submits, checks and restarts jobs.

ledger.py proves which samples a run has trained on, branch.py continues a checkpoint with a learning-rate decay, and average.py
averages checkpoints. Training imports none of these.
"""

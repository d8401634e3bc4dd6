"""Executing the runs of a study: training and measuring in child processes, several at a time.

run.py and measurement.py: a run with processes of its own. one_process/: several runs in one process. pool.py starts both, by
the choice of an engine (engines.py).
"""

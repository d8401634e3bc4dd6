"""Executing the runs of a study: training and measuring in child processes, several at a time."""

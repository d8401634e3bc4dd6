"""Runs of a suite: data and configuration of a task, search of a learning rate, runs of all seeds."""

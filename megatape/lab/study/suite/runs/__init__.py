"""Runs of a suite: data and configuration of a task, learning-rate search, runs of all seeds."""

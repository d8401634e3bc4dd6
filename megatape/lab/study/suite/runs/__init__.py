"""Runs of a suite: data and configuration of a task, learning-rate search, runs of all seeds.

task_folder.py   folder of a task, with its data
experiment.py    configuration and runs of a task and an encoding
rate_search.py   learning-rate search
repeated.py      repeats finished runs, and compares their results with the recorded ones
"""

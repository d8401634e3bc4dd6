"""Synthetic tasks that small models learn in minutes, with tests that differ from the training data.

task.py has the interface and folder.py writes a task's data directory. Each other file is a task, with its source; addition.py
draws its problems from addition_problems.py, which also prepares the addition corpus.
"""

"""Goodput of a run that fails at random.

model.py       expected goodput and the best interval between checkpoints, in closed form
simulation.py  simulated runs, for the spread of goodput
"""

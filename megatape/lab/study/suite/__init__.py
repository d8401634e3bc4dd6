"""Suite of synthetic tasks, from the plan to the tables.

plan.py, sizes.py   tasks, encodings, seeds and learning rates to run
design.py           the plan, fixed before the first run
runs/               runs of each task and encoding: learning-rate search, then all seeds
scores/             records of a trained model and of baselines
analysis/           cells with means over seeds, differences between encodings with their tests, ranks
tables/             tables and files of the results
page.py             page with pictures, rendered by megatape/lab/report

suite.py calls them in this order.
"""

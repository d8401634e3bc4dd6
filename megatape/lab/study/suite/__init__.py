"""Suite of synthetic tasks, from the plan to the tables.

plan.py, sizes.py   tasks, encodings, seeds and learning rates to run
runs/               runs of each task and encoding: the search of the learning rate, then all seeds
scores/             scores of a trained model, and of baselines
analysis/           differences between encodings with their tests, and ranks
tables/             tables and files of the results

suite.py goes through these steps in order. The page with pictures is megatape/lab/report/suite_page.py.
"""

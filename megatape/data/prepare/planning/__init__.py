"""Plans a preparation.

planner.py          agrees on one plan for all processes: the first one makes it, the others resume with it
training_sample.py  a sample of the source's texts, on which to train a tokenizer
redo.py             units to prepare again, because their files have changed
"""

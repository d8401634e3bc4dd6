"""Perplexity at several context lengths, on the same text.

text.py        reads tokens from a data directory or a file
windows.py     cuts the tokens into windows
losses.py      losses of a model in windows
results.py     perplexity by length, and losses by position
task.py        the task

Studies measure their runs on the validation split, without the task:

validation.py   perplexity
by_position.py  loss by position
"""

"""Perplexity at several context lengths, on the same text.

text.py       the tokens of a data directory or a file
windows.py    windows of the tokens, by the mode of the task
losses.py     a model's losses in windows
results.py    perplexity and losses by position
task.py       the task
validation.py the perplexity on the validation split, without the task
"""

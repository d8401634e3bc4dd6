"""Passkey retrieval: the model repeats a number from one line of a long text at its end.

questions.py  the texts, by protocol: prompts of the paper, or prompts of exact lengths with the number at given depths
results.py    accuracy by length and depth
task.py       the task
"""

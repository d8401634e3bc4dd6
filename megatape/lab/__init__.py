"""Experiments: tasks/ (evaluation), benchmark/, study/, and report/ (pages about runs).

tasks/         evaluation tasks: `megatape evaluate`
benchmark/     speed and memory: `megatape benchmark`
report/        pages about runs, and their view in a terminal: `megatape report`, `megatape monitor`
study/         models trained and compared: `megatape study`. It uses tasks/ and report/

Several of these share:

encodings.py   encodings to compare
names.py       lists of names and folders in options
processes.py   child processes
perplexity.py  the perplexity of a loss
paper.py       the paper's figures (paper.json)
pictures.py    style of pictures and pages
"""

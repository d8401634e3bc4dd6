"""Evaluation tasks of `megatape evaluate`.

addition.py              a task of one file, the example to copy
passkey/, perplexity/, scrolls/, lm_eval/
                         tasks of several files; task.py has the task
scores.py                F1, exact match and ROUGE of answers
registry.py              names of the tasks
engine/                  the interface of tasks, and the code running them

To add a task, start with engine/task.py. Results go to OUTPUT/TASK/MODEL; engine/journal.py lists the files there.
"""

"""Tasks of lm-eval, EleutherAI's harness.

names.py    checks task names without importing lm-eval
loading.py  loads tasks with their data sets
lengths.py  RULER and BABILong at chosen text lengths
replacements.py
            parts of lm-eval and its libraries that are replaced while it loads tasks
model.py    our models with lm-eval's interface
results.py  scores of tasks and groups
task.py     the task of `megatape evaluate`

lm-eval may not be installed, so it is imported inside functions, or by lengths.py and model.py, which are imported inside
functions.
"""

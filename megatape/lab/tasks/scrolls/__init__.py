"""SCROLLS (arXiv 2201.03533): questions about long texts, and summaries, prompted as in fine-tuning.

sets.py              names of sets, with their metrics
questions.py         reads a set's questions and references
predictions.py       reads answers in the format of SCROLLS' scorer, for `megatape scores`
prompt_tokenizer.py  the model's tokenizer as used in fine-tuning
results.py           scores of each set
task.py              the task
"""

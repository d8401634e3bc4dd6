"""SCROLLS (arXiv 2201.03533): questions about long texts, and summaries, prompted as in fine-tuning.

sets.py, questions.py, predictions.py
              the files of a user: names of sets with their metrics, questions, and answers to score
prompt_tokenizer.py
              the model's tokenizer as fine-tuning uses it
task.py       the task, whose results are in results.py
"""

"""Scoring trained models and baselines, and the records of their scores.

task_result.py    scores of one model on a task
answers.py        a model's answers
measure.py        scores of a trained model
baselines.py      scores of baselines
record.py         a score of the suite
record_files.py   files of records
"""

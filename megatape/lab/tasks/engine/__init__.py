"""Interfaces of evaluation tasks, and the code running them on models.

Interfaces
task.py             Task: makes batches of examples, predicts them, computes results
model.py            EvaluationModel: the part of a model that tasks use
result.py           TaskScores and its Measures, the numbers compared between models
lengths.py          lengths in tokens, and batches of equal length

Running
runner.py           evaluate_models: every task on every model; `evaluate` for a single one in memory
evaluation.py       Evaluation: one task on one model, resumed from its journal
ranks.py            processes sharing the work
loading.py, outline.py, tensor_parallel.py
                    models: options, tokenizers and limits read early, weights sharded across GPUs

Files
journal.py          the folder of an evaluation: settings, predictions, results
record.py           content of settings.json and results.json, and recorded.py what is read of the latter
provenance.py       hashes of models and examples, versions of the software
table.py            the table comparing models
"""

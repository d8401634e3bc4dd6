"""Studies: train or load models, measure them, and write tables.

comparison/   encodings, on text or addition: `compare`
finetuning/   methods that extend the context of a pretrained model: `finetune`
suite/        encodings on synthetic tasks, with statistics: `suite`
attention/    attention and position tensors of trained models: `draw` and `report`

The first three train models. A Study (execution/study.py) starts the runs, `measure` of each study's measure.py makes the
results of a run in a process of its own, and a report puts the results of all runs into a table.

execution/    runs in child processes, several at a time, each trained and then measured
outcomes/     results of a run of the first two studies, with their tables and plots
"""

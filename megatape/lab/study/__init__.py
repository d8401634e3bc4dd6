"""Studies: train or load models, measure them, and write tables.

comparison/   encodings on text or addition problems: `compare`
finetuning/   methods extending the context of a pretrained model: `finetune`
suite/        encodings on synthetic tasks, with statistics: `suite`
attention/    attention and position tensors of trained models: `attention` and `shift`

variants.py   models to compare, as the options of `compare` and `suite` name them

The first three train models. Each goes from a plan to a table in the same steps:

1. The plan lists the models to train: Comparison (comparison/compare.py), Extension (finetuning/finetune.py), or Plan
   (suite/plan.py), whose tasks and encodings become Experiments (suite/runs/).
2. Each model is a Run (execution/run.py). A Study (execution/study.py) locks its folder, and its RunPool trains several runs at
   a time with `megatape pretrain`, or those of the suite in groups without it (execution/one_process/).
3. A Measurement (execution/measurement.py) calls a function of the study's measure.py in a new process, after training, or
   another one in the process of a group. It writes a result into the run directory.
4. A report reads the results of all runs and writes tables and pictures: report.py of a study, or suite/analysis/ with the
   statistics and suite/tables/ with the tables. The suite also gets a page, suite/page.py.

A finished step is never repeated, so the same command continues an interrupted study.

One word for each kind of numbers:

* RunResult: measurements of one run, in a file of its run directory. The first two studies write a TextResult (results/) to
  outcome.json, and the suite writes a TaskResult (suite/scores/) to scores.json.
* Figures: named numbers of a TextResult, such as perplexities. They become columns only in tables and files.
* Record: score of one model on one split of a task, a line of results.jsonl. A TaskResult has one for each split.
* Cell: scores of an encoding or a baseline on one split, by seed. Statistics start from cells.
"""

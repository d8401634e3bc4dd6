"""Results of runs and their files, and reports shared by `compare` and `finetune`.

Results of a run:

checks.py                 checks before training that the model can be evaluated and exported
result.py                 base class of results
text_result.py            result in `compare` and `finetune`
figures.py                named numbers of a result
training_metrics.py       metrics of the training
numerical_environment.py  software and hardware behind rounding errors
silence.py                silence of transformers meanwhile

Reports:

report.py                 tables and files
plots.py                  pictures
"""

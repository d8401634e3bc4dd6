"""Results of runs and their files, and reports shared by `compare` and `finetune`."""

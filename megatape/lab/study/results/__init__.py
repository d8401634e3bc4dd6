"""Results of runs: their files, the figures of `compare` and `finetune`, and what the reports of both share."""

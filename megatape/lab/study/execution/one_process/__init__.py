"""Training and measuring the runs of a study in one process, without DeepSpeed, checkpoints, and a start for each run.

Each run computes what `pretrain` computes on one rank: the same model, initial weights, samples, clipping, AdamW and schedule
(docs/results/engines.md has the tolerances, tests/lab/study/execution/one_process holds them).

Where to look:

* unsupported.py: settings that only `pretrain` supports.
* group.py: runs that share a process, seen from the study.
* worker.py: the process: trains and measures the runs of a group, and says why a run failed.
* training.py: training of some runs, step by step; learner.py: model, samples and optimizer of one run.
* flat_weights.py: weights and gradients in few tensors.
* answer_tokens.py: the loss without computing tokens that it does not read; packing.py: samples without their padding.
* short_attention.py: attention of short rows on a CPU.
* agreement.py: check at the start that this loss is that of `pretrain`.
* step_graph.py: repeating a step as a CUDA graph.
"""

"""Training: pretrain.py runs one rank, trainer.py is the training loop, and startup/ builds it from a configuration.

Where to look:

* pretrain.py: one rank of a run, from the launcher's variables to the exit status.
* start.py: the user's choices about the start, such as `--resume`.
* startup/: everything before the first step: checks, building the trainer, resuming or initializing.
* trainer.py: the loop over steps; run_schedule.py: when to evaluate, save and check.
* steps/: one optimizer step: prefetched batches, passes and update, spike policy, skipped steps.
* validation/: the loss on the validation splits; position_views/: summaries of the position tensors.
* saving.py: when to save; run_state.py and progress.py: what checkpoints store beside the weights.
* interrupt.py: stopping on a signal.
* reporting/: metrics of steps, speed, memory, and the report about the start.
* callbacks/: followers of a run, including metrics, which passes them to sinks/ (console, metrics.jsonl, trackers).
"""

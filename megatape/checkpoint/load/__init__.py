"""Loading: opening a checkpoint, and deciding what a run continues from.

* reader.py: reads any part of any tensor. candidate.py: opens a checkpoint on all ranks, and verifies it.
* selection.py: finds the checkpoint to resume from, or to roll back to. compatibility.py compares it with the run.
* fresh_start.py: rules for starting from step 0.
"""

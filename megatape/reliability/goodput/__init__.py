"""Goodput of a run: the share of time spent on steps that it keeps, and where the rest went.

* parts.py: `TimeParts`, the seconds of a run by `TimePart`.
* process_clock.py: `ProcessClock`, the stopwatch of a process. Each event in events.jsonl has its reading (run_log.py).
* run_time.py: `RunTime` adds up the readings of all processes of a run (process_time.py), and counts the steps that it keeps by
  the seconds until its checkpoints (saved_steps.py). read.py reads it from a run directory.
* run_costs.py: costs of steps, saves and restarts, for estimates.
* table.py writes the result as text.
"""

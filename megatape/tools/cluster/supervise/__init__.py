"""Restarting a run on one machine, for `megatape supervise`.

supervisor.py            starts the command until the run ends: start here. ../restarts.py decides about restarts
supervised_command.py    the running command, and how it ended
run_progress.py          new checkpoints and events in the run directory
stop.py                  requests to stop, and the exit status after one
"""

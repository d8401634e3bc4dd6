"""Restarting a run on one machine, for `megatape supervise`.

supervisor.py            starts the command until the run ends: start here. ../restarts.py decides about restarts
ended_command.py         interface of running commands, and how one ended
supervised_command.py    the user's command, which starts the ranks
local_launcher.py        starts ranks on this machine, for --ranks, and keeps standby processes
first_step.py            notices when standby processes may start: their imports would delay the first step
local_ranks.py           running ranks, and how they end. rank_process.py: a process that becomes a rank
run_progress.py          new checkpoints and events in the run directory
stop.py                  requests to stop, and the exit status after one
"""

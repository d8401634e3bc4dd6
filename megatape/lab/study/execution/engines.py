"""Engines that train the runs of a study."""

from typing import Literal

# processes: `pretrain` in a process for each run, and a second one that measures the checkpoint.
# one_process: several runs in one process, without DeepSpeed and checkpoints (one_process/).
Engine = Literal["processes", "one_process"]

# auto: one_process on a CPU for the runs that it supports, otherwise processes.
EngineChoice = Literal["auto", "processes", "one_process"]

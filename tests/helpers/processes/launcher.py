"""Training under the `deepspeed` launcher, as a user starts it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

from tests.helpers.processes.workers import ROOT, free_port


def start_deepspeed(num_ranks: int, words: list[str], output: IO[str] | int) -> "subprocess.Popen[str]":
    """Start launch/pretrain.py in its own process group.

    Args:
        num_ranks: Number of ranks on this host.
        words: Options for `megatape pretrain`.
        output: File receiving the output of launcher and ranks, or subprocess.PIPE.
    """
    folder_of_deepspeed = str(Path(sys.executable).parent)
    path = os.pathsep.join([folder_of_deepspeed, os.environ["PATH"]])
    launcher = ["deepspeed", "--num_accelerators", str(num_ranks), "--master_port", str(free_port())]
    return subprocess.Popen(
        [*launcher, "launch/pretrain.py", *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PATH": path},
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )

"""Measures the time from the command to the end of the first step of configs/tape_tiny.json on two processes."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from megatape.benchmark.children import child
from megatape.errors import MissingPath

CONFIG, DATA = "configs/tape_tiny.json", "runs/data/python"


def report() -> Iterator[str]:
    """Yields the time. Raises FileNotFoundError without the data, ChildProcessError with the run's last lines if it fails."""
    if not Path(DATA).is_dir():
        raise MissingPath(f"no folder {DATA}: run in the repository's root, after launch/quickstart.py")
    with tempfile.TemporaryDirectory() as folder:
        command = ["deepspeed", "--num_accelerators", "2", "--module", "megatape", "pretrain", "--config", CONFIG]
        command += ["--set", "training.steps=2", "--set", f"run.directory={folder}/run", "--set", f"data.path={DATA}"]
        started, output = time.perf_counter(), []
        with child(command) as process:
            assert process.stdout is not None
            for line in process.stdout:
                output.append(line)
                if line.startswith("step 1/"):
                    yield f"{time.perf_counter() - started:.1f} s from the command to the end of the first step"
            if process.wait():
                raise ChildProcessError("".join(output[-20:]) + f"the run exited with status {process.returncode}")

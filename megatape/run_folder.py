"""Layout of a run directory: every path that a run, its Slurm job or its comparison writes.

lease.json              process training here (megatape/reliability/lease/lease.py)
config.json             resolved configuration
metrics.jsonl           one object per step
events.jsonl            one object per event: starts, checkpoints, stops, failures
positions/              step-00000100.safetensors and so on (megatape/training/position_views/view.py)
tensorboard/            the same metrics for TensorBoard
checkpoints/            step-00000100/ and so on (megatape/checkpoint/format/manifest.py), and checkpoints moved aside:
                        step-00000100.corrupted/, and step-00000100.rewound/ until the next checkpoint is complete
latest                  path of the last checkpoint that the run wrote or continued from
exports/                step-00000100/ and so on, exports made while training (export.interval)
profile/                rank0.json and so on, traces of profiled steps
hangs/                  rank0.txt and so on: a rank's thread stacks when another rank hung, its traceback when one failed
wandb.json, trackio.json  ids of the run in these trackers; wandb/ has Weights & Biases' local files
logs/, submissions/     logs of Slurm jobs, and the code and configuration that they run
log.txt                 output of a run started by `megatape study compare`
outcome.json            results of such a run; outcome+yarn.json: with scaled frequencies
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatape.utils.files.atomic import write_atomically
from megatape.utils.files.json_lines import read_lines

# Suffix of checkpoints moved aside for failing verification.
CORRUPTED = ".corrupted"
# Suffix of checkpoints moved aside because the run rolled back to an earlier one, as version 0.1 called it.
ROLLED_BACK = ".rewound"


class _RunPath:
    """Path inside a run directory."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: "RunFolder", kind: type) -> Path:
        return folder.directory / self.name


@dataclass(frozen=True)
class RunFolder:
    """A run directory, which may be empty or not exist yet.

    Attributes:
        directory: Path of the run directory.
        lease, config, metrics, events, positions, latest, tensorboard, checkpoints, exports, job_logs, submissions, log: Paths
            inside it, see above.
    """

    directory: Path

    lease = _RunPath("lease.json")
    config = _RunPath("config.json")
    metrics = _RunPath("metrics.jsonl")
    events = _RunPath("events.jsonl")
    positions = _RunPath("positions")
    latest = _RunPath("latest")
    tensorboard = _RunPath("tensorboard")
    checkpoints = _RunPath("checkpoints")
    exports = _RunPath("exports")
    job_logs = _RunPath("logs")
    submissions = _RunPath("submissions")
    log = _RunPath("log.txt")

    def tracker(self, name: str) -> Path:
        """Return the path of a tracker's record: the run's id in the tracker, and the last step written."""
        return self.directory / f"{name}.json"

    def trace(self, rank: int) -> Path:
        """Return the path of a rank's profiler trace."""
        return self.directory / "profile" / f"rank{rank}.json"

    def stacks(self, rank: int) -> Path:
        """Return the path of a rank's thread stacks when another rank hung, or its traceback when a rank failed."""
        return self.directory / "hangs" / f"rank{rank}.txt"

    def outcome(self, scaling: str | None) -> Path:
        """Return the path of the results with a kind of model.scaling, None for no scaling."""
        if not scaling:
            return self.directory / "outcome.json"
        return self.directory / f"outcome+{scaling}.json"

    def checkpoint(self, step: int) -> Path:
        """Return the folder of a step's checkpoint."""
        return self.checkpoints / f"step-{step:08d}"

    def export(self, step: int) -> Path:
        """Return the folder of the export of a step's checkpoint."""
        return self.exports / f"step-{step:08d}"

    def position_view(self, step: int) -> Path:
        """Return the path of the position view from the evaluation after a step."""
        return self.positions / f"step-{step:08d}.safetensors"

    def list_position_views(self) -> dict[int, Path]:
        """Return the paths of all position views by step."""
        views = {}
        for path in self.positions.glob("step-*.safetensors"):
            step = path.stem.removeprefix("step-")
            if step.isdecimal():
                views[int(step)] = path
        return dict(sorted(views.items()))

    def list_checkpoints(self) -> list[Path]:
        """Return the folders named like complete checkpoints, newest first. Their content may be corrupted."""
        return _list_steps(self.checkpoints)

    def list_exports(self) -> list[Path]:
        """Return the exports made while training, newest first."""
        return _list_steps(self.exports)

    def mark_latest(self, checkpoint: Path) -> None:
        """Record the last checkpoint that the run wrote or continued from."""
        write_atomically(self.latest, f"{checkpoint.absolute()}\n".encode())


def named_step(folder: Path) -> int:
    """Return the step in the name of a checkpoint or an export."""
    return int(folder.name.removeprefix("step-"))


def _list_steps(parent: Path) -> list[Path]:
    """Return the folders named after steps, newest first."""
    folders = []
    for path in parent.glob("step-*"):
        if path.is_dir() and path.name.removeprefix("step-").isdecimal():
            folders.append(path)
    return sorted(folders, key=named_step, reverse=True)


def read_metrics(path: Path) -> dict[int, str]:
    """Read metrics.jsonl, skipping torn lines that a killed process or a full disk has left.

    Args:
        path: The file. If it is missing, there are no lines.

    Returns:
        Step -> its last line, in the order of steps.
    """
    lines = {}
    for text, entry in read_lines(path):
        step = entry.get("step")
        if type(step) is int:
            lines[step] = text
    return dict(sorted(lines.items()))


def read_steps(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the metrics of each step in metrics.jsonl, in order."""
    for line in read_metrics(path).values():
        yield json.loads(line)

"""Layout of a run's folder: every path that a run, its Slurm job or its comparison writes.

lease.json              while a run trains here: which process (megatape/reliability/lease.py)
config.json             resolved configuration
metrics.jsonl           one object per step
events.jsonl            one object per event: starts, checkpoints, stops, failures
positions/              step-00000100.safetensors and so on (megatape/training/position_view.py)
tensorboard/            the same metrics for TensorBoard
checkpoints/            step-00000100/ and so on (megatape/checkpoint/manifest.py); beside them those that were moved aside:
                        step-00000100.corrupted/, and step-00000100.rewound/ until the next checkpoint is complete
latest                  the checkpoint that was last written, or that the run continued from
profile/                rank0.json and so on, traces of profiled steps
hangs/                  rank0.txt and so on: where the threads of a rank were when another hung, its traceback when one failed
wandb.json, trackio.json  the run's record there; wandb/ holds what Weights & Biases keeps on this machine
logs/, submissions/     logs of Slurm jobs, and the code and configuration they run
log.txt                 output of a run that `megatape study compare` started
outcome.json            its results; outcome+yarn.json: the same with scaled frequencies
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatape.errors import UserError
from megatape.utils.files import read_json, read_lines, read_regular, rename, write_atomically
from megatape.utils.units import plural

# Suffixes of checkpoints that were moved aside.
CORRUPTED = ".corrupted"  # it failed verification; earlier versions wrote .damaged
ROLLED_BACK = ".rewound"  # the run went back before it after a spike


class _RunPath:
    """A path below a run's folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: "RunFolder", kind: type) -> Path:
        return folder.directory / self.name


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, which may be empty or not exist yet."""

    directory: Path

    lease = _RunPath("lease.json")
    config = _RunPath("config.json")
    metrics = _RunPath("metrics.jsonl")
    events = _RunPath("events.jsonl")
    positions = _RunPath("positions")
    latest = _RunPath("latest")
    tensorboard = _RunPath("tensorboard")
    checkpoints = _RunPath("checkpoints")
    job_logs = _RunPath("logs")
    submissions = _RunPath("submissions")
    log = _RunPath("log.txt")

    def tracker(self, name: str) -> Path:
        """The run's record in a tracker of metrics: its id there, and the last step that was written."""
        return self.directory / f"{name}.json"

    def trace(self, rank: int) -> Path:
        """Trace of the profiled steps on a rank."""
        return self.directory / "profile" / f"rank{rank}.json"

    def stacks(self, rank: int) -> Path:
        """Where the threads of a rank were when another rank hung, and its traceback when another rank failed."""
        return self.directory / "hangs" / f"rank{rank}.txt"

    def outcome(self, scaling: str | None) -> Path:
        """Results measured with this kind of model.scaling, or without scaling."""
        return self.directory / (f"outcome+{scaling}.json" if scaling else "outcome.json")

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint written after `step` optimizer steps."""
        return self.checkpoints / f"step-{step:08d}"

    def position_view(self, step: int) -> Path:
        """What the evaluation after `step` optimizer steps kept of the position tensors."""
        return self.positions / f"step-{step:08d}.safetensors"

    def list_position_views(self) -> dict[int, Path]:
        """Step -> file of every evaluation that kept a position view."""
        steps = {path.stem.removeprefix("step-"): path for path in self.positions.glob("step-*.safetensors")}
        return dict(sorted((int(step), path) for step, path in steps.items() if step.isdecimal()))

    def list_checkpoints(self) -> list[Path]:
        """Folders named like complete checkpoints, newest first. Their content may still be corrupted."""
        folders = [path for path in self.checkpoints.glob("step-*") if path.is_dir()]
        named = [path for path in folders if path.name.removeprefix("step-").isdecimal()]
        return sorted(named, key=named_step, reverse=True)

    def check_new(self) -> None:
        """Raise UserError if a run has trained here, so that another one must not start from step 0."""
        if self.list_checkpoints():
            raise UserError(
                f"run.directory {self.directory} already holds checkpoints: add --resume auto to continue, or choose another "
                "folder"
            )
        self._check_nothing_lost()
        if steps := len(read_metrics(self.metrics)):
            raise UserError(
                f"run.directory {self.directory} already holds a run: {self.metrics.name} records {plural(steps, 'step')}. Add "
                f"--resume auto to continue it, choose another folder, or remove {self.metrics}"
            )

    def check_restart(self) -> int:
        """The steps that a run recorded here without ever saving a checkpoint, so that it may start again from step 0.

        Raises UserError if there are no checkpoints but there may have been some.
        """
        self._check_nothing_lost()
        recorded = max(read_metrics(self.metrics), default=0)
        first_save = self._first_save()
        # A partial folder of that step shows that the process ended during the first save.
        saving = any(self.checkpoints.glob(f"{self.checkpoint(first_save).name}.*tmp"))
        never_saved = (recorded == first_save and saving) or self._records_no_save()
        if recorded and recorded >= first_save and not never_saved:
            raise UserError(
                f"run.directory {self.directory} has no checkpoint, but {self.metrics.name} records {plural(recorded, 'step')} "
                f"and {self.config.name} asks for the first checkpoint at step {first_save}: starting from step 0 could repeat "
                f"what is lost. Restore or mount {self.checkpoints}, choose another run.directory, or remove {self.metrics} "
                "to start again"
            )
        return recorded

    def set_metrics_aside(self) -> Path:
        """Rename metrics.jsonl before a run starts again from step 0; returns the new name."""
        number = 1
        while (aside := self.directory / f"metrics-{number}.jsonl").exists():
            number += 1
        rename(self.metrics, aside)
        return aside

    def mark_latest(self, checkpoint: Path) -> None:
        """Record the checkpoint that was last written, or that the run continued from."""
        write_atomically(self.latest, f"{checkpoint.absolute()}\n".encode())

    def _check_nothing_lost(self) -> None:
        """Raise UserError if there are no checkpoints here but something shows that there were."""
        advice = f"choose another run.directory, or remove {self.directory} to start again"
        aside = [path for suffix in (CORRUPTED, ".damaged") for path in self.checkpoints.glob(f"step-*{suffix}")]
        if aside:
            raise UserError(
                f"run.directory {self.directory} holds no checkpoint but corrupted ones that were set aside, such as "
                f"{aside[0].name}: repair one and remove its suffix, {advice}"
            )
        if self.latest.exists():
            last = read_regular(self.latest).decode(errors="replace").strip()
            raise UserError(
                f"run.directory {self.directory} holds no checkpoint, but the run that trained here last had {last}: restore "
                f"or mount it and give --resume {last}, {advice}"
            )
        if self.config.exists() and not self.metrics.exists():
            raise UserError(
                f"run.directory {self.directory} holds {self.config.name} of an earlier run, but neither its checkpoints nor "
                f"its {self.metrics.name}: restore or mount them, {advice}"
            )

    def _records_no_save(self) -> bool:
        """Whether events.jsonl shows that a run began here and never completed a checkpoint.

        It was killed between the step and its save, or made more steps while the first save was written in the background.
        """
        events = [event.get("event") for _, event in read_lines(self.events)]
        return "started" in events and "checkpoint" not in events

    def _first_save(self) -> int:
        """Step of the first checkpoint by the run's own configuration, 0 if that cannot be read."""
        try:
            config = read_json(self.config)
            return min(int(config["checkpoint"]["interval"]), int(config["training"]["steps"]))
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return 0


def named_step(checkpoint: Path) -> int:
    """The step in the name of a checkpoint folder of a run."""
    return int(checkpoint.name.removeprefix("step-"))


def read_metrics(path: Path) -> dict[int, str]:
    """Step -> its line, for every valid line of metrics.jsonl; the last one counts if a step has several.

    Lines that are not metrics (a process was killed while writing, a disk was full) are left out; no file, no lines.
    """
    found = {entry["step"]: text for text, entry in read_lines(path) if type(entry.get("step")) is int}
    return dict(sorted(found.items()))


def read_steps(path: Path) -> Iterator[dict[str, Any]]:
    """The objects in metrics.jsonl, one for each step, by step."""
    return map(json.loads, read_metrics(path).values())

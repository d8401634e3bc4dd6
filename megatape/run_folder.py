"""The layout of a run's folder: every path that a run, its job or its measurement writes.

config.json             resolved configuration
metrics.jsonl           one object per step
tensorboard/            the same for TensorBoard
checkpoints/            step-00000100/ and others (megatape/checkpoint/manifest.py)
profile/                rank0.json and others, traces of some steps
logs/, submissions/     output of Slurm jobs, and what was submitted
log.txt                 output of a run that a comparison started
outcome.json            what a comparison measured, outcome+yarn.json the same with scaled frequencies
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunFolder:
    """The folder `directory` of a run. It may be empty, or not exist yet."""

    directory: Path

    @property
    def config(self) -> Path:
        return self.directory / "config.json"

    @property
    def metrics(self) -> Path:
        return self.directory / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.directory / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def job_logs(self) -> Path:
        return self.directory / "logs"

    @property
    def submissions(self) -> Path:
        return self.directory / "submissions"

    @property
    def log(self) -> Path:
        return self.directory / "log.txt"

    def trace(self, rank: int) -> Path:
        """Profile of some steps on this rank."""
        return self.directory / "profile" / f"rank{rank}.json"

    def outcome(self, scaling: str | None) -> Path:
        """What was measured with this kind of model.scaling."""
        return self.directory / (f"outcome+{scaling}.json" if scaling else "outcome.json")

    def checkpoint(self, step: int) -> Path:
        """The checkpoint after `step` optimizer steps."""
        return self.checkpoints / f"step-{step:08d}"

    def list_checkpoints(self) -> list[Path]:
        """Folders that are named like complete checkpoints, newest first; their content may still be corrupted."""
        found = [
            path for path in self.checkpoints.glob("step-*") if path.is_dir() and path.name.removeprefix("step-").isdigit()
        ]
        return sorted(found, reverse=True)

    def check_new(self) -> None:
        """Raise ValueError if a run has already saved checkpoints here."""
        if self.list_checkpoints():
            raise ValueError(
                f"run.directory {self.directory} already holds checkpoints: add --resume auto to continue, or choose another folder"
            )

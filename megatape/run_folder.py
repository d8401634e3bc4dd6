"""The layout of a run's folder: every path that a run, its Slurm job or its comparison writes.

config.json             resolved configuration
metrics.jsonl           one object per step
tensorboard/            the same metrics for TensorBoard
checkpoints/            step-00000100/ and so on (megatape/checkpoint/manifest.py)
profile/                rank0.json and so on, traces of profiled steps
logs/, submissions/     logs of Slurm jobs, and the code and configuration they run
log.txt                 output of a run that `megatape study compare` started
outcome.json            its results; outcome+yarn.json: the same with scaled frequencies
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, which may be empty or not exist yet."""

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
        """Trace of the profiled steps on a rank."""
        return self.directory / "profile" / f"rank{rank}.json"

    def outcome(self, scaling: str | None) -> Path:
        """Results measured with this kind of model.scaling, or without scaling."""
        return self.directory / (f"outcome+{scaling}.json" if scaling else "outcome.json")

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint written after `step` optimizer steps."""
        return self.checkpoints / f"step-{step:08d}"

    def list_checkpoints(self) -> list[Path]:
        """Folders named like complete checkpoints, newest first. Their content may still be corrupted."""
        found = [
            path for path in self.checkpoints.glob("step-*") if path.is_dir() and path.name.removeprefix("step-").isdigit()
        ]
        return sorted(found, reverse=True)

    def check_new(self) -> None:
        """Raise ValueError if the folder already holds checkpoints."""
        if self.list_checkpoints():
            raise ValueError(
                f"run.directory {self.directory} already holds checkpoints: add --resume auto to continue, or choose another "
                "folder"
            )

"""Runs of a Slurm job: one configuration, or one per task of a job array."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megatape.checkpoint.fresh_start import check_new
from megatape.config import Config, load_config
from megatape.data.training.run_data import open_data
from megatape.errors import UserError, content_errors, path_errors
from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder
from megatape.tools.cluster.slurm.job import Job

# Slurm's formats of a time limit: 90, 90:30, 1:30:00, 1-12, 1-12:00:00.
TIME_LIMIT = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


@dataclass(frozen=True)
class JobArray:
    """Runs of a job.

    Attributes:
        configs: Configurations by file name.
        directory: Folder of the run, or of the runs of an array.
        is_array: Whether each configuration is a task of a job array. Otherwise there is a single configuration.
    """

    configs: dict[str, Config]
    directory: Path
    is_array: bool


@path_errors()
def plan_array(path: str, overrides: Sequence[str], changes: Path | None) -> JobArray:
    """Return the run of a configuration, or one run per line of a file with changes.

    Args:
        path: File of the configuration.
        overrides: Changes `section.key=value` of all runs.
        changes: File with a line of changes per run. Run i writes to run.directory/i.

    Raises:
        UserError: A configuration or a line is invalid.
        FileNotFoundError: A file is missing.
    """
    base = load_config(path, overrides)
    directory = Path(base.run.directory)
    if changes is None:
        return JobArray({"config.json": base}, directory, is_array=False)

    configs = {}
    for number, changes_of_run in enumerate(_read_changes(changes)):
        if any(change.startswith("run.directory=") for change in changes_of_run):
            raise UserError(f"{changes}, run {number}: run.directory is always {directory}/{number}: remove it")
        own_directory = f"run.directory={directory / str(number)}"
        with content_errors(f"{changes}, run {number}", "correct its line", UserError):
            config = load_config(path, [*overrides, *changes_of_run, own_directory])
        configs[f"config-{number}.json"] = config
    if not configs:
        raise UserError(f"{changes}: no runs: write a line of section.key=value overrides for each run")
    return JobArray(configs, directory, is_array=True)


def _read_changes(file: Path) -> list[list[str]]:
    """Return the changes on each line of a file, without empty lines and comments."""
    lines = []
    with content_errors(str(file), "write section.key=value overrides in UTF-8, with closed quotes"):
        for text in file.read_text(encoding="utf-8").splitlines():
            # shlex would begin a comment at any #, also inside a word.
            without_comment = re.sub(r"(^|\s)#.*", "", text)
            words = shlex.split(without_comment)
            if words:
                lines.append(words)
    return lines


def check_array(array: JobArray, job: Job, resume: bool) -> None:
    """Check rank count, data, folders and time limit before a job is submitted.

    Args:
        array: Runs of the job.
        job: Resources of the job.
        resume: Whether the runs may resume from checkpoints in their folders.

    Raises:
        UserError: The job would fail at its start.
        OSError: Data or a folder cannot be read.
    """
    for config in array.configs.values():
        config.accumulation(job.nodes * job.ranks_per_node)
        open_data(config)
        folder = RunFolder(Path(config.run.directory))
        Lease(folder.lease).check_free()
        if not resume:
            check_new(folder)
    if job.time is None:
        return
    minutes = parse_time_limit(job.time)
    if minutes and minutes * 60 <= job.checkpoint_seconds:
        raise UserError(
            f"time {job.time} leaves no time to train: the run is told to write its checkpoint {job.checkpoint_seconds} s "
            "before the time limit (`checkpoint_seconds`)"
        )


def parse_time_limit(time: str) -> float | None:
    """Return the minutes of a Slurm time limit, or None if its format is unknown. 0 means no limit."""
    match = TIME_LIMIT.fullmatch(time)
    if match is None:
        return None
    days, *parts = match.groups()
    first, second, third = (int(part or 0) for part in parts)
    has_hours = days is not None or parts[2] is not None
    if not has_hours:
        return first + second / 60
    return int(days or 0) * 1440 + first * 60 + second + third / 60

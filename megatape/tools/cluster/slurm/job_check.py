"""Checks a job before it is submitted."""

import re
from pathlib import Path

from megatape.checkpoint.load.fresh_start import check_new
from megatape.data.training.run_data import open_data
from megatape.errors import UserError, flag
from megatape.reliability.lease import check_free
from megatape.run_folder import RunFolder
from megatape.tools.cluster.slurm.job import Job
from megatape.tools.cluster.slurm.job_array import JobArray

# Slurm's formats of a time limit: 90, 90:30, 1:30:00, 1-12, 1-12:00:00.
TIME_LIMIT = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def check_array(array: JobArray, job: Job, resume: bool) -> None:
    """Check rank count, data, run directories and time limit before submitting a job.

    Args:
        array: Runs of the job.
        job: Resources of the job.
        resume: Whether runs may resume from checkpoints in their run directories.

    Raises:
        UserError: The job would fail when starting.
        OSError: A data or run directory cannot be read.
    """
    for config in array.configs.values():
        config.check_divides(job.nodes * job.ranks_per_node)
        open_data(config.data, config.training, config.evaluation, config.model.vocab_size)
        folder = RunFolder(Path(config.run.directory))
        check_free(folder.lease)
        if not resume:
            check_new(folder)
    if job.time is None:
        return
    minutes = _parse_time_limit(job.time)
    if minutes and minutes * 60 <= job.checkpoint_seconds:
        raise UserError(
            f"{flag('time')} {job.time} leaves no time to train: the last checkpoint is written {job.checkpoint_seconds} s "
            f"before the limit: give a longer {flag('time')}, or a lower {flag('checkpoint_seconds')}"
        )


def _parse_time_limit(time: str) -> float | None:
    """Return a Slurm time limit in minutes, where 0 means no limit, or None if its format is unknown."""
    match = TIME_LIMIT.fullmatch(time)
    if match is None:
        return None
    days, *parts = match.groups()
    first, second, third = (int(part or 0) for part in parts)
    has_hours = days is not None or parts[2] is not None
    if not has_hours:
        return first + second / 60
    return int(days or 0) * 1440 + first * 60 + second + third / 60

"""Checks a job before it is submitted."""

from pathlib import Path

from megatape.checkpoint.load.fresh_start import check_new
from megatape.data.training.run_data import open_data
from megatape.errors import UserError, flag
from megatape.reliability.lease import check_free
from megatape.run_folder import RunFolder
from megatape.tools.cluster.slurm.job import Job
from megatape.tools.cluster.slurm.job_array import JobArray
from megatape.tools.cluster.slurm.time_limit import parse_time_limit


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
    minutes = parse_time_limit(job.time)
    if minutes and minutes * 60 <= job.checkpoint_seconds:
        raise UserError(
            f"{flag('time')} {job.time} leaves no time to train: the last checkpoint is written {job.checkpoint_seconds} s "
            f"before the limit: give a longer {flag('time')}, or a lower {flag('checkpoint_seconds')}"
        )

"""Checks of a job before its submission."""

from pathlib import Path

from megatape.checkpoint.fresh_start import check_new
from megatape.data.training.run_data import open_data
from megatape.errors import UserError
from megatape.reliability.lease import check_free
from megatape.run_folder import RunFolder
from megatape.tools.cluster.slurm.job import Job
from megatape.tools.cluster.slurm.job_array import JobArray
from megatape.tools.cluster.slurm.time_limit import parse_time_limit


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
            f"time {job.time} leaves no time to train: the run is told to write its checkpoint {job.checkpoint_seconds} s "
            "before the time limit (`checkpoint_seconds`)"
        )

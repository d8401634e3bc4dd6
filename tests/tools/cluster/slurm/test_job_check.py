"""Checks of a job before submitting it."""

import pytest

from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder
from megatape.tools.cluster.slurm.job_array import JobArray
from megatape.tools.cluster.slurm.job_check import check_array
from tests.helpers.cluster.jobs import new_job


@pytest.mark.parametrize(
    ("time", "enough"),
    [
        ("5", False),
        ("6", True),
        ("4:59", False),
        ("00:05:00", False),
        ("1:00:00", True),
        ("1-0", True),
        ("0", True),
        ("INFINITE", True),
    ],
)
def test_time_to_write_a_checkpoint(array: JobArray, time: str, enough: bool) -> None:
    """For Slurm, 0 means no limit."""
    job = new_job("tiny", 1, 1, False, time=time, checkpoint_seconds=300)
    if enough:
        check_array(array, job, resume=False)
    else:
        with pytest.raises(ValueError, match=f"time {time} leaves no time"):
            check_array(array, job, resume=False)


def test_checkpoints_in_the_folder(array: JobArray) -> None:
    (array.directory / "checkpoints" / "step-00000004").mkdir(parents=True)
    with pytest.raises(ValueError, match="already holds checkpoints: add `resume` auto"):
        check_array(array, new_job("tiny", 1, 1, False), resume=False)
    check_array(array, new_job("tiny", 1, 1, False), resume=True)


def test_a_run_in_the_folder(array: JobArray) -> None:
    lease = Lease(RunFolder(array.directory).lease)
    assert lease.attempt()
    with pytest.raises(ValueError, match="is in use by a run"):
        check_array(array, new_job("tiny", 1, 2, False), resume=True)
    lease.release()
    check_array(array, new_job("tiny", 1, 2, False), resume=True)

"""A failed run is started again by its batch script while it advances, and its job is requeued."""

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest

from megatape.run_folder import RunFolder
from megatape.tools.cluster.restarts import JOB_POLICY
from tests.helpers.cluster.job_scripts import JobScript
from tests.helpers.cluster.restarted_runs import CASES, leave_invalid_checkpoints, prepare_run, starts, trainer


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return prepare_run(tmp_path)


def job_script(raw_config: dict[str, Any], folder: RunFolder, lines: list[str], restarts: int = 0) -> JobScript:
    """Return the batch script of a run whose starts follow the lines."""
    start = shlex.join(trainer(folder, lines))
    srun = f'case "$*" in *pretrain*) exec {start} "$@" ;; esac'
    policy = dataclasses.replace(JOB_POLICY, pause=0)
    return JobScript(raw_config, folder, {"srun": srun}, restarts, policy)


@pytest.mark.parametrize("name", CASES)
def test_batch_script(raw_config: dict[str, Any], folder: RunFolder, name: str) -> None:
    """The script also requeues a job that was stopped, or whose last checkpoint was not saved."""
    lines, allowed, status, number = CASES[name]
    done = job_script(raw_config, folder, lines, allowed).run()
    assert done.returncode == status, done
    assert len(starts(folder)) == number
    assert done.stdout.count("started again") == number - 1
    assert done.stdout.count("requeued") == (status in (74, 75)), done.stdout


def test_invalid_checkpoints_are_no_progress_of_a_job(raw_config: dict[str, Any], folder: RunFolder) -> None:
    leave_invalid_checkpoints(folder)
    assert job_script(raw_config, folder, ["1 340", "1 350", "1 360", "0 380"], 3).run().returncode == 0


def test_requeues_end_without_progress(raw_config: dict[str, Any], folder: RunFolder) -> None:
    """A job is not requeued after three starts in a row without a new checkpoint, whatever ended them."""
    lines = ["75 10", "75 0", "138 0", "74 20", "75 0", "138 0", "74 0"]
    script = job_script(raw_config, folder, lines)
    outputs = [script.run(requeues).stdout for requeues in range(len(lines))]
    assert ["; requeued" in output for output in outputs] == [True] * 6 + [False], outputs
    assert "not requeued: no new checkpoint in the last 3 starts" in outputs[-1]

"""One machine's share, by option or environment."""

import os

import pytest

from megatape.data.prepare.queue.task import Task, parse_task, task_of_environment
from megatape.errors import UserError


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove variables set by Slurm or a launcher running the tests."""
    for name in list(os.environ):
        if name.startswith("SLURM_") or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)


@pytest.fixture
def job_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables shared by all elements in a job array: 1, 3, 5 and 7, with two ranks each."""
    monkeypatch.setenv("SLURM_ARRAY_TASK_MIN", "1")
    monkeypatch.setenv("SLURM_ARRAY_TASK_STEP", "2")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "4")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")


def test_a_machine_on_its_own_has_the_only_task() -> None:
    assert task_of_environment() == Task(0, 1)


def test_every_rank_of_a_job_array_has_a_task_of_its_own(job_array: None, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = set()
    for element in ("1", "3", "5", "7"):
        for rank in ("0", "1"):
            monkeypatch.setenv("SLURM_ARRAY_TASK_ID", element)
            monkeypatch.setenv("SLURM_PROCID", rank)
            tasks.add(task_of_environment())

    assert tasks == {Task(index, 8) for index in range(8)}


def test_a_malformed_variable_is_named(job_array: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "x")
    monkeypatch.setenv("SLURM_PROCID", "1")

    with pytest.raises(UserError, match="SLURM_ARRAY_TASK_ID is 'x', not a number: unset it, or give `task`"):
        task_of_environment()


def test_the_option_gives_index_and_number_of_tasks() -> None:
    assert parse_task("3/16") == Task(3, 16)


@pytest.mark.parametrize("text", ["16/16", "1", "-1/2", "1/2/3", "a/b"])
def test_a_malformed_option_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=rf"task is '{text}': give a number from 0 on and the number of tasks"):
        parse_task(text)

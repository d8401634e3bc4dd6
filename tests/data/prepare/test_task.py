"""Shares of machines, by option and environment."""

import os

import pytest

from megatape.data.prepare.task import Task, parse_task, task_of_environment
from megatape.errors import UserError


def test_task_of_the_environment_or_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each element of an array, and each rank in it, is another one of all."""
    for name in [name for name in os.environ if name.startswith("SLURM_") or name in ("RANK", "WORLD_SIZE")]:
        monkeypatch.delenv(name)
    assert task_of_environment() == Task(0, 1)
    array = {"SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_STEP": "2", "SLURM_ARRAY_TASK_COUNT": "3"}
    found = set()
    for number in ("1", "3", "5"):
        for rank in ("0", "1"):
            ranks = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": rank}
            for name, value in (array | ranks | {"SLURM_ARRAY_TASK_ID": number}).items():
                monkeypatch.setenv(name, value)
            found.add(task_of_environment())
    assert found == {Task(index, 6) for index in range(6)}
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "x")
    with pytest.raises(UserError, match="SLURM_ARRAY_TASK_ID is 'x', not a number: unset it, or give `task`"):
        task_of_environment()
    assert parse_task("3/16") == Task(3, 16)
    for text in ("16/16", "1", "-1/2", "1/2/3", "a/b"):
        with pytest.raises(UserError, match=rf"task is '{text}': give a number from 0 on and the number of tasks"):
            parse_task(text)

"""Running out of memory: one line with a remedy."""

import errno
from typing import Any

import pytest
import torch

from megatape.config import Config, parse_config
from megatape.errors import ExitStatus, OutOfMemory
from megatape.reliability.watch.rank_errors import RankFailed
from megatape.training.startup.memory.memory_errors import explained_memory_errors
from tests.helpers.planner.memory_plans import memory_plan

ERRORS = {
    "CUDA": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has a total of 79 GiB"),
    "CPU": RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried 8 bytes"),
    "Python": MemoryError(),
    "C++": RuntimeError("std::bad_alloc"),
    "mmap": OSError(errno.ENOMEM, "Cannot allocate memory"),
}


@pytest.fixture
def config(raw_config: dict[str, Any]) -> Config:
    raw_config["training"]["micro_batch_size"] = 8
    return parse_config(raw_config, "test")


@pytest.mark.parametrize(("made", "status"), [(0, ExitStatus.USER_ERROR), (3, ExitStatus.DIED)])
@pytest.mark.parametrize("error", ERRORS)
def test_out_of_memory_is_one_line(config: Config, error: str, made: int, status: int) -> None:
    """A traceback of 48 lines hid the remedy. Only a run having made steps is restarted."""
    with pytest.raises(OutOfMemory) as found, explained_memory_errors(memory_plan(config), lambda: made):
        raise ERRORS[error]
    text = str(found.value)
    assert found.value.status == status
    assert "\n" not in text
    assert "out of memory" in text
    assert "the plan counts" in text
    assert "--set training.micro_batch_size=4 needs" in text


OTHER_ERRORS = [
    RuntimeError("shapes do not match"),
    OSError(errno.EIO, "no"),
    KeyError("x"),
    RankFailed("rank 1 failed: out of memory in step 2", ExitStatus.DIED),
]


@pytest.mark.parametrize("error", OTHER_ERRORS, ids=lambda error: type(error).__name__)
def test_other_errors_are_unchanged(config: Config, error: Exception) -> None:
    with pytest.raises(type(error)) as found, explained_memory_errors(memory_plan(config)):
        raise error
    assert found.value is error

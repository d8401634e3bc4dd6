"""Errors of memory: one line with a remedy, before the first step if the shortage is known by then."""

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.accounting.fitting_change import smallest_fitting_change
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory import plan_total
from megatape.config import Config, parse_config
from megatape.distributed.topology import Topology
from megatape.errors import ExitStatus, OutOfMemory
from megatape.reliability.watch.rank_errors import RankFailed
from megatape.training.startup.memory_guard import MemoryGuard
from tests.helpers.command import Command

ONE = Topology(rank=0, local_rank=0, world_size=1, local_size=1)
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


def guard_of(config: Config, measure: Callable[[], float] | None = None, patience: float = 20.0) -> MemoryGuard:
    """Return the guard of a run on one rank."""
    layout = partial(TrainingLayout.from_config, config, 1)
    return MemoryGuard(ONE, layout, partial(smallest_fitting_change, config, 1), measure, patience)


@pytest.mark.parametrize(("made", "status"), [(0, ExitStatus.USER_ERROR), (3, ExitStatus.DIED)])
@pytest.mark.parametrize("error", ERRORS)
def test_out_of_memory_is_one_line(config: Config, error: str, made: int, status: int) -> None:
    """A traceback of 48 lines hid the remedy. A run that made steps is restarted, a run that made none is not."""
    with pytest.raises(OutOfMemory) as found, guard_of(config).explained_errors(lambda: made):
        raise ERRORS[error]
    text = str(found.value)
    assert found.value.status == status and "\n" not in text
    assert "out of memory" in text and "the plan counts" in text
    assert "--set training.micro_batch_size=4 needs" in text


OTHER_ERRORS = [
    RuntimeError("shapes do not match"),
    OSError(errno.EIO, "no"),
    KeyError("x"),
    RankFailed("rank 1 failed: out of memory in step 2", ExitStatus.DIED),
]


@pytest.mark.parametrize("error", OTHER_ERRORS, ids=lambda error: type(error).__name__)
def test_other_errors_are_unchanged(config: Config, error: Exception) -> None:
    with pytest.raises(type(error)) as found, guard_of(config).explained_errors():
        raise error
    assert found.value is error


def test_refuses_a_run_that_cannot_fit(config: Config) -> None:
    guard_of(config, lambda: 2.0**40).check()
    with pytest.raises(OutOfMemory, match=r"needs at least \S+ \w+ of memory a rank, and 1.00 MiB are free") as found:
        guard_of(config, lambda: 2.0**20, patience=0).check()
    assert found.value.everywhere and found.value.status == ExitStatus.USER_ERROR


def test_accepts_a_run_that_may_fit(config: Config) -> None:
    """Measured peaks are up to 20% below the plan."""
    memory = plan_total(TrainingLayout.from_config(config, 1), on_gpu=False)
    total = memory.device_total + sum(memory.host.values())
    guard_of(config, lambda: 0.97 * total, patience=0).check()
    with pytest.raises(OutOfMemory):
        guard_of(config, lambda: 0.5 * total, patience=0).check()


def test_waits_for_memory_of_ending_processes(config: Config) -> None:
    """When a run is started again, processes of its last start may still hold memory: a refusal would end it for good."""
    measured = iter([2.0**20, 2.0**40])
    guard_of(config, lambda: next(measured), patience=0.5).check()
    assert next(measured, None) is None


def test_remedy_fits(config: Config) -> None:
    """The remedy is the smallest change: one setting rather than two."""
    larger = smallest_fitting_change(config, 1, False, 2.0**40)
    assert larger is not None
    changes, memory = larger
    assert changes == {"training.micro_batch_size": 4}
    needed = memory.device_total
    tighter = smallest_fitting_change(config, 1, False, needed)
    assert tighter is not None
    assert len(tighter[0]) == 1 and tighter[1].device_total <= 0.95 * needed
    assert smallest_fitting_change(config, 1, False, 1.0) is None


def test_a_run_that_cannot_fit_ends_with_one_line(command: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    """The run's weights alone would take terabytes: without the check the kernel would kill the process."""
    raw_config["model"] |= {"hidden_size": 4096, "mlp_size": 2**23}
    (tmp_path / "config.json").write_text(parse_config(raw_config, "test").model_dump_json())
    status, _, errors = command("pretrain", "--config", tmp_path / "config.json")
    lines = [line for line in errors.splitlines() if "error" in line]
    assert status == ExitStatus.USER_ERROR and len(lines) == 1 and "Traceback" not in errors
    assert "TiB of memory a rank" in lines[0] and "use more ranks" in lines[0]

"""Memory check before the first step, and the remedy it suggests."""

from pathlib import Path
from typing import Any

import pytest

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.fitting_change import smallest_fitting_change
from megatape.accounting.memory.rank_memory import plan_total
from megatape.config import Config, load_config, parse_config, save_config, with_settings
from megatape.errors import ExitStatus, InsufficientMemory
from megatape.training.startup.memory.memory_check import check_memory
from megatape.training.startup.memory.memory_plan import MemoryPlan
from tests.helpers.planner.memory_plans import ONE_RANK, memory_plan
from tests.helpers.processes.command import Command


@pytest.fixture
def config(raw_config: dict[str, Any]) -> Config:
    raw_config["training"]["micro_batch_size"] = 8
    return parse_config(raw_config, "test")


def test_refuses_a_run_that_cannot_fit(config: Config) -> None:
    check_memory(memory_plan(config), lambda: 2.0**40)
    with pytest.raises(InsufficientMemory, match=r"needs at least \S+ \w+ of memory per rank, and 1.00 MiB are free") as found:
        check_memory(memory_plan(config), lambda: 2.0**20, patience=0)
    assert found.value.everywhere
    assert found.value.status == ExitStatus.USER_ERROR


def test_accepts_a_run_that_may_fit(config: Config) -> None:
    """Measured peaks are up to 20% below the plan."""
    memory = plan_total(TrainingLayout.from_config(config, 1), on_gpu=False)
    total = memory.device_total + sum(memory.host.values())
    check_memory(memory_plan(config), lambda: 0.97 * total, patience=0)
    with pytest.raises(InsufficientMemory):
        check_memory(memory_plan(config), lambda: 0.5 * total, patience=0)


def test_waits_for_memory_of_ending_processes(config: Config) -> None:
    """When a run restarts, processes from its last start may still hold memory. Refusing would end it for good."""
    measured = iter([2.0**20, 2.0**40])
    check_memory(memory_plan(config), lambda: next(measured), patience=0.5)
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
    assert len(tighter[0]) == 1
    assert tighter[1].device_total <= 0.95 * needed
    assert smallest_fitting_change(config, 1, False, 1.0) is None


def test_remedy_is_accepted_on_the_command_line(config: Config, tmp_path: Path) -> None:
    """The remedy's options change a configuration to the planned one."""
    changes = {
        "training.micro_batch_size": 4,
        "training.activation_checkpointing": "full",
        "training.cuda_graphs": False,
        "zero.stage": 2,
    }
    layout = TrainingLayout.from_config(config, 1)
    memory = plan_total(layout, on_gpu=True)
    plan = MemoryPlan(ONE_RANK, lambda: layout, lambda on_gpu, available: (changes, memory))
    options, _, _ = plan.remedy(2.0**40).partition(" needs ")
    save_config(config, tmp_path / "config.json")
    advised = load_config(tmp_path / "config.json", options.split()[1::2])
    assert advised == with_settings(config, changes)


def test_a_run_that_cannot_fit_ends_with_one_line(command: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    """The run's weights alone would take terabytes: without the check the kernel would kill the process."""
    raw_config["model"] |= {"hidden_size": 4096, "mlp_size": 2**23}
    (tmp_path / "config.json").write_text(parse_config(raw_config, "test").model_dump_json())
    status, _, errors = command("pretrain", "--config", tmp_path / "config.json")
    lines = [line for line in errors.splitlines() if "error" in line]
    assert status == ExitStatus.USER_ERROR
    assert len(lines) == 1
    assert "Traceback" not in errors
    assert "TiB of memory per rank" in lines[0]
    assert "use more ranks" in lines[0]

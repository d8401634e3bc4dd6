"""Weights and optimizer state that change between two updates are found at every ZeRO stage, and the rank is named."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from torch import Tensor

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.errors import TrainingDiverged
from megatape.training.trainer import Trainer
from megatape.zero.state.kinds import WEIGHT
from megatape.zero.state.memory_check import COMPUTE_WEIGHT
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.small_run import small_config
from tests.helpers.runs.trainers import trainer_without_lease

PARAMETER = "blocks.1.attention_norm.weight"
FAULTY_RANK = 1
STEPS = 3


class Case(NamedTuple):
    """A fault between the second and the third step.

    Attributes:
        stage: ZeRO stage.
        kind: Kind of tensor that changes, None for no fault.
        is_transient: Whether the tensor is as before when it is read again.
        interval: Updates from one check to the next.
        is_found: Whether the third step finds it.
    """

    stage: int
    kind: str | None
    interval: int = 1
    is_found: bool = True
    is_transient: bool = False


CASES = {
    "no fault": Case(1, None, is_found=False),
    "stage 0, weight": Case(0, WEIGHT),
    "stage 1, master weight": Case(1, WEIGHT),
    "stage 1, weight": Case(1, COMPUTE_WEIGHT),
    "transient": Case(1, WEIGHT, is_transient=True),
    "stage 2, moment": Case(2, "exp_avg"),
    "stage 3, weight": Case(3, COMPUTE_WEIGHT),
    "stage 3, moment": Case(3, "exp_avg_sq"),
    "checked at another step": Case(1, WEIGHT, interval=3, is_found=False),
    "never checked": Case(1, WEIGHT, interval=0, is_found=False),
}


def train_cases(raw: dict[str, Any], topology: Topology) -> dict[str, str | None]:
    """Train with each fault. Returns the error that ended the third step, or None."""
    return {name: _train(raw, topology, name, case) for name, case in CASES.items()}


def _train(raw: dict[str, Any], topology: Topology, name: str, case: Case) -> str | None:
    changes = {
        "zero": {"stage": case.stage},
        "run": {"directory": f"{raw['run']['directory']}/{name}"},
        "training": raw["training"] | {"memory_check_interval": case.interval},
    }
    run = trainer_without_lease(parse_config(raw | changes, name), topology)
    with run.stepper:
        run.train_step()
        run.train_step()
        if case.kind is not None and topology.rank == FAULTY_RANK:
            element = _element(run, case.kind)
            before = element.clone()
            element += 1.0
            if case.is_transient:
                _restore_at_next_exchange(run, element, before)
        try:
            run.train_step()
        except TrainingDiverged as error:
            return str(error)
    return None


def _element(run: Trainer, kind: str) -> Tensor:
    """Return an element of a tensor that this rank has a part of, a view."""
    state = run.engine.state
    for name in (PARAMETER, *state.parameters):
        if kind == COMPUTE_WEIGHT:
            values = state.compute_weight(name)
        else:
            values = state.piece(name, kind).values
        if values.numel():
            return values.detach().view(-1)[0]
    raise AssertionError(f"rank {FAULTY_RANK} has no {kind}")


def _restore_at_next_exchange(run: Trainer, element: Tensor, before: Tensor) -> None:
    """Restore an element when ranks exchange the step's status: after the check has read it, and before ranks are named."""
    sum_over_ranks = run.engine.sum_over_ranks

    def restore_and_sum(*numbers: Any) -> list[float]:
        element.copy_(before)
        return sum_over_ranks(*numbers)

    run.engine.sum_over_ranks = restore_and_sum  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def errors(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str | None]]:
    """Errors of each rank."""
    folder = tmp_path_factory.mktemp("memory")
    raw = small_config(data_directory, folder / "run")
    raw["training"] |= {"steps": STEPS}
    return run_workers("tests.zero.state.test_memory_check:train_cases", 2, raw, folder / "workers")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_change_between_two_updates(errors: list[dict[str, str | None]], name: str) -> None:
    """All ranks end with the same error."""
    case = CASES[name]
    first, second = (errors_of_rank[name] for errors_of_rank in errors)
    assert first == second
    if not case.is_found:
        assert first is None
        return
    assert first is not None
    assert first.startswith(f"the {case.kind} of ")
    assert f" on rank {FAULTY_RANK} has changed between two updates" in first

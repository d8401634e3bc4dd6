"""Replicas that compute different numbers from the same samples are found."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.errors import TrainingDiverged
from megatape.zero.passes.computation_check import RankResult, describe_fault
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_folders import assert_identical
from tests.helpers.runs.small_run import small_config
from tests.helpers.runs.trainers import trainer_without_lease

FAULTY_RANK = 1


class Case(NamedTuple):
    """A run of two ranks.

    Attributes:
        stage: ZeRO stage.
        is_faulty: Whether a rank adds another number to an activation each time.
        tensor_ranks: Number of tensor-parallel ranks. With two of two ranks there is one replica.
        rounds: Whether the rank adds the same number each time, from the start, as if it rounded differently.
    """

    stage: int
    is_faulty: bool
    tensor_ranks: int = 1
    rounds: bool = False


CASES = {f"stage {stage}, {is_faulty}": Case(stage, is_faulty) for stage in range(4) for is_faulty in (False, True)}
CASES["one replica"] = Case(1, True, tensor_ranks=2)
CASES["other rounding"] = Case(1, True, rounds=True)


def train_cases(raw: dict[str, Any], topology: Topology) -> dict[str, str | None]:
    """Train two steps of each case, with checks between them, and return the error or None."""
    return {name: _train(raw, topology, name, case) for name, case in CASES.items()}


def _train(raw: dict[str, Any], topology: Topology, name: str, case: Case) -> str | None:
    changes = {
        "zero": {"stage": case.stage},
        "run": {"directory": f"{raw['run']['directory']}/{name}"},
        "parallel": {"tp": case.tensor_ranks},
    }
    run = trainer_without_lease(parse_config(raw | changes, name), topology)
    num_calls = 0

    def disturb(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        nonlocal num_calls
        num_calls += 1
        if case.rounds:
            return output + 0.001
        return output + 0.001 * num_calls

    with run.stepper:
        run.train_step()
        if case.is_faulty and topology.rank == FAULTY_RANK:
            run.engine.deepspeed_engine.module.blocks[1].attention_norm.register_forward_hook(disturb)
        try:
            run.stepper.check_computation(run.progress)
        except TrainingDiverged as error:
            return str(error)
        if not case.is_faulty:
            _assert_nothing_changed(run, raw, changes, topology)
    return None


def _assert_nothing_changed(run: Any, raw: dict[str, Any], changes: dict[str, Any], topology: Topology) -> None:
    """Check that the next step is that of a run without the check."""
    changes = changes | {"run": {"directory": changes["run"]["directory"] + " unchecked"}}
    other = trainer_without_lease(parse_config(raw | changes, "unchecked"), topology)
    with other.stepper:
        other.train_step()
        assert run.train_step().loss == other.train_step().loss
    states = []
    for trainer in (run, other):
        state = trainer.engine.state
        states.append({name: state.piece(name, "weight").values.clone() for name in state.parameters})
    assert_identical(*states)


@pytest.fixture(scope="module")
def errors(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str | None]]:
    """Errors of each rank."""
    folder = tmp_path_factory.mktemp("computation")
    raw = small_config(data_directory, folder / "run")
    return run_workers("tests.zero.passes.test_computation_check:train_cases", 2, raw, folder / "workers")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_rank_that_computes_other_numbers(errors: list[dict[str, str | None]], name: str) -> None:
    """All ranks end with the same error. Without a fault, the check changes nothing."""
    case = CASES[name]
    first, second = (errors_of_rank[name] for errors_of_rank in errors)
    assert first == second
    if case.is_faulty and case.tensor_ranks == 1 and not case.rounds:
        assert first is not None
        assert first.startswith(f"rank {FAULTY_RANK} computed other numbers from the same samples a second time")
    else:
        assert first is None


def result(data_rank: int, first: int, again: int, position: int = 0) -> RankResult:
    return RankResult(data_rank, (0, 0, position), [first], [again])


@pytest.mark.parametrize(
    ("results", "named"),
    [
        ([result(0, 1, 1), result(1, 2, 3)], "rank 1 computed other numbers from the same samples a second time"),
        ([result(0, 1, 1), result(1, 2, 2), result(2, 1, 1)], "rank 1 computed other numbers than most replicas"),
        ([result(0, 1, 1), result(1, 2, 2)], "replicas on ranks 0-1 computed different numbers"),
        (
            [
                result(0, 1, 1, 0),
                result(0, 5, 5, 1),
                result(1, 1, 1, 0),
                result(1, 6, 6, 1),
                result(2, 1, 1, 0),
                result(2, 6, 6, 1),
            ],
            "rank 1 computed other numbers than most replicas",
        ),
    ],
)
def test_the_faulty_rank_is_named(results: list[RankResult], named: str) -> None:
    """Ranks are compared with those at the same position in other replicas."""
    assert describe_fault(results).startswith(named)

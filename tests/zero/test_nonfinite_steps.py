"""If a loss or gradient is not finite on one rank, no rank takes the step, and the run continues as without it."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.training.trainer import Trainer
from megatape.zero import engine
from megatape.zero.passes.nonfinite import NonfiniteDetector
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.trainers import trainer_without_lease

# A weight sharded over tensor-parallel ranks, and one replicated on them.
SHARDED = "blocks.1.attention.query.weight"
REPLICATED = "blocks.1.attention_norm.weight"

STAGES: dict[str, dict[str, Any]] = {
    "0": {"zero": {"stage": 0}},
    "1": {"zero": {"stage": 1}},
    "2": {"zero": {"stage": 2}},
    "3": {"zero": {"stage": 3}},
    "2 bfloat16": {"zero": {"stage": 2}, "precision": "bfloat16"},
    "3 bfloat16": {"zero": {"stage": 3}, "precision": "bfloat16"},
    "2 offload": {"zero": {"stage": 2, "offload_optimizer": True}},
    "3 offload": {"zero": {"stage": 3, "offload_optimizer": True}},
}

# A clean step, the steps with FAULTS, and a clean step
NUM_STEPS = 5

SHARED = "a gradient that every tensor-parallel rank must have is not finite on rank 3, but not on all"


class Fault(NamedTuple):
    """A NaN on one rank: its place, "loss" or the name of a parameter, and the start of the message."""

    place: str
    rank: int
    message: str


# Step -> fault in it
FAULTS = {
    1: Fault("loss", 2, "the loss is nan"),
    2: Fault(SHARDED, 1, "the gradient norm is"),
    3: Fault(REPLICATED, 3, SHARED),
}


class Result(NamedTuple):
    """Result of a rank at one stage.

    Attributes:
        reasons: Reason why each step with a fault was skipped.
        unchanged: Whether each skipped step left all numbers of the rank unchanged.
        equals_clean_run: Whether the run ends with the numbers of a run without such steps.
    """

    reasons: list[str | None]
    unchanged: list[bool]
    equals_clean_run: bool


class GradientFaults:
    """Spoils gradients before the detector of non-finite numbers sees them."""

    def __init__(self) -> None:
        # Weight -> function that spoils its gradient. Tensors are hashed by identity.
        self._functions: dict[Tensor, Callable[[Tensor], Tensor]] = {}
        self._seen_by_detector: set[Tensor] = set()

    def make_detector(self, parameters: Iterable[Any], device: torch.device) -> NonfiniteDetector:
        """Return a detector whose weights have another hook before its own."""
        weights = list(parameters)
        for weight in weights:
            weight.register_hook(partial(self._apply, weight))
        self._seen_by_detector.update(weights)
        return NonfiniteDetector(weights, device)

    @contextmanager
    def inject(self, weight: Tensor, spoil: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Apply a function to the gradients of a weight."""
        if weight not in self._seen_by_detector:
            with weight.register_hook(spoil):
                yield
            return
        self._functions[weight] = spoil
        yield
        del self._functions[weight]

    def _apply(self, weight: Tensor, gradient: Tensor) -> Tensor:
        if weight in self._functions:
            return self._functions[weight](gradient)
        return gradient


class Run(NamedTuple):
    """Trainer of a run, and the faults of its gradients."""

    trainer: Trainer
    faults: GradientFaults


# DeepSpeed itself skips what is not finite in float32 at stages 1 and 2, and at stage 3. The other cases are ours.
@pytest.mark.parametrize(
    "stages",
    [
        ["3"],
        pytest.param(["0", "1", "2", "2 bfloat16", "2 offload", "3 bfloat16", "3 offload"], marks=pytest.mark.slow),
    ],
)
def test_no_rank_takes_a_nonfinite_step(raw_config: dict[str, Any], tmp_path: Path, stages: list[str]) -> None:
    # Steps have two micro-batches. The first one has the fault.
    raw_config["training"] |= {"steps": NUM_STEPS, "micro_batch_size": 2}
    raw_config["parallel"] = {"tp": 2}
    payload = {"config": raw_config, "stages": stages}
    results = run_workers("tests.zero.test_nonfinite_steps:train", 4, payload, tmp_path / "workers")
    for rank, results_of_rank in enumerate(results):
        for stage, (reasons, unchanged, equals_clean_run) in zip(stages, results_of_rank, strict=True):
            for fault, reason in zip(FAULTS.values(), reasons, strict=True):
                assert reason is not None, (rank, stage, fault)
                # From stage 1 on, DeepSpeed may find a fault in a shared gradient first.
                if stage == "0" or fault.message != SHARED:
                    assert reason.startswith(fault.message), (rank, stage)
            assert unchanged == [True] * len(FAULTS), (rank, stage)
            assert equals_clean_run, (rank, stage)


def train(payload: dict[str, Any], topology: Topology) -> list[Result]:
    """Train at some of STAGES with FAULTS. Return the result of each stage."""
    raw = payload["config"]
    results = []
    for stage in payload["stages"]:
        run = _make_run(raw, stage, topology, "faults")
        reasons, unchanged = _train_with_faults(run, topology.rank)
        progress = run.trainer.progress
        assert progress.step == NUM_STEPS
        assert progress.updates == NUM_STEPS - len(FAULTS)

        clean = _make_run(raw, stage, topology, "clean").trainer
        clean.train_step()
        clean.progress.samples += len(FAULTS) * raw["training"]["global_batch_size"]
        clean.stepper.forget_next_batch()
        clean.train_step()
        results.append(Result(reasons, unchanged, _equal(_numbers(run.trainer), _numbers(clean))))
    return results


def _train_with_faults(run: Run, rank: int) -> tuple[list[str | None], list[bool]]:
    """Train all steps of a run. Return the first two fields of Result."""
    trainer = run.trainer
    reasons = []
    unchanged = []
    for step in range(NUM_STEPS):
        before = _numbers(trainer)
        if step not in FAULTS:
            output = trainer.train_step()
            assert output.is_applied, step
            assert not _equal(before, _numbers(trainer)), step
            continue
        fault = FAULTS[step]
        place = None
        if rank == fault.rank:
            place = fault.place
        with _inject(run, place):
            output = trainer.train_step()
        reasons.append(output.skip_reason)
        unchanged.append(_equal(before, _numbers(trainer)))
    return reasons, unchanged


def _make_run(raw: dict[str, Any], stage: str, topology: Topology, name: str) -> Run:
    """Return a run at one of STAGES, with a constant learning rate and a folder of this name."""
    changes = STAGES[stage]
    training = dict(raw["training"])
    if "precision" in changes:
        training["precision"] = changes["precision"]
    folder = f"{raw['run']['directory']}/{stage} {name}"
    config = parse_config(
        raw
        | {
            "optimizer": raw["optimizer"] | {"learning_rate": 1e-2},
            "schedule": {"kind": "constant", "warmup_fraction": 0.0},
            "zero": changes["zero"],
            "training": training,
            "run": {"directory": folder},
        },
        stage,
    )
    faults = GradientFaults()
    with patch.object(engine, "NonfiniteDetector", faults.make_detector):
        return Run(trainer_without_lease(config, topology), faults)


@contextmanager
def _inject(run: Run, place: str | None) -> Iterator[None]:
    """Make the loss of the first micro-batch, or its gradient of a parameter, NaN, each time that a step is computed.

    Args:
        run: Run.
        place: "loss", name of a parameter, or None for no fault.
    """
    if place is None:
        yield
        return
    spoil = _multiply_first_of_two(torch.nan)
    trained = run.trainer.engine
    parameter = trained.state.parameters.get(place)
    if parameter is None:
        module = trained.deepspeed_engine.module
        with module.register_forward_hook(lambda module, inputs, output: spoil(output)):
            yield
    else:
        with run.faults.inject(parameter, spoil):
            yield


def _multiply_first_of_two(factor: float) -> Callable[[Tensor], Tensor]:
    """Return a function that multiplies every second tensor, beginning with the first: a step is computed twice."""
    factors = itertools.cycle([factor, 1.0])

    def multiply(tensor: Tensor) -> Tensor:
        return tensor * next(factors)

    return multiply


def _numbers(run: Trainer) -> list[Tensor]:
    """Return this rank's master weights, optimizer state and compute weights."""
    state = run.engine.state
    numbers = []
    for kind, names in state.names_by_kind.items():
        for name in names:
            numbers.append(state.piece(name, kind).values.clone())
    for values in state.optimizer.state.values():
        numbers.append(values["step"].clone())
    for parameter in state.parameters.values():
        computed = getattr(parameter, "ds_tensor", parameter)
        numbers.append(computed.data.clone())
    return numbers


def _equal(tensors: list[Tensor], expected: list[Tensor]) -> bool:
    """Whether two lists of tensors are equal."""
    return all(torch.equal(tensor, other) for tensor, other in zip(tensors, expected, strict=True))

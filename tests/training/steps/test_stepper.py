"""Steps without a model: which are computed, how often, and what ranks exchange."""

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megatape.config.batches import BatchSizes
from megatape.data.training.loader import Batch, Loader
from megatape.distributed.topology import Topology
from megatape.errors import DataError
from megatape.nn.targets import IGNORE_INDEX
from megatape.reliability.watch.pace import Pace
from megatape.training.state import TrainState
from megatape.training.steps.output import SkipReason
from megatape.training.steps.status import Requests
from megatape.training.steps.stepper import Stepper
from megatape.zero.pass_result import GradientSums, PassResult
from megatape.zero.stopwatch import Stopwatch
from megatape.zero.update import Decide, Decision, Skip, Take, Update

CPU = torch.device("cpu")
STEP = 2


class StubLoader(Loader):
    """Loader of steps of two samples. Steps after `masked` samples have no targets, and after `failing` no data."""

    def __init__(self, masked: int | None = None, failing: int | None = None) -> None:
        self.batches = BatchSizes(STEP)
        self._masked = masked
        self._failing = failing

    def step(self, consumed: int) -> list[Batch]:
        if consumed == self._failing:
            raise OSError("the file server is gone")
        ids = torch.full((STEP, 2), consumed)
        targets = torch.ones_like(ids)
        if consumed == self._masked:
            targets.fill_(IGNORE_INDEX)
        return [Batch(ids, targets, ids, None)]

    def digest(self, consumed: int) -> int:
        return consumed + 1


class StubEngine:
    """Engine on one rank, whose passes return `losses` in turn."""

    def __init__(self, losses: list[float]) -> None:
        self.device = CPU
        self.topology = Topology(0, 1, 0)
        self.mesh = {"sample": SimpleNamespace(size=1), "tensor": SimpleNamespace(size=1)}
        self.num_exchanges = 0
        self.num_updates = 0
        self._losses = iter(losses)

    def forward_backward(self, inputs: list[Any], num_targets: float) -> PassResult:
        loss = torch.tensor(next(self._losses) * num_targets)
        return PassResult(GradientSums(loss), Stopwatch(CPU))

    def sum_over_ranks(self, *numbers: Any) -> list[float]:
        self.num_exchanges += 1
        return [float(number) for number in numbers]

    def update(self, rate: float, loss: float, sums: GradientSums, *, decide: Decide) -> Update:
        self.num_updates += 1
        return Update(1.0, None, decide(1.0))


class StubPolicy:
    """Policy that skips configured and rolled-back samples, and updates with a loss above 5."""

    def __init__(self, configured: int | None = None, rolled_back: int | None = None) -> None:
        self.observed: list[int] = []
        self._configured = configured
        self._rolled_back = rolled_back

    def is_configured_to_skip(self, samples: range) -> bool:
        return samples.start == self._configured

    def is_rolled_back(self, samples: range) -> bool:
        return samples.start == self._rolled_back

    def decide(self, loss: float, norm: float) -> Decision:
        if loss > 5:
            return Skip(f"the loss is {loss:.0f}")
        return Take()

    def observe(self, step: int, loss: float, update: Update) -> None:
        self.observed.append(step)


class Run:
    """Stepper over stand-ins of its parts."""

    def __init__(self, losses: list[float], loader: StubLoader | None = None, policy: StubPolicy | None = None) -> None:
        self.engine = StubEngine(losses)
        self.policy = policy or StubPolicy()
        self.state = TrainState(sequence_length=2)
        engine: Any = self.engine
        stepper_policy: Any = self.policy
        self.stepper = Stepper(engine, loader or StubLoader(), stepper_policy, lambda step: 0.1 * (step + 1), Requests, Pace())

    def steps(self, number: int) -> Iterator[Any]:
        """Yield the results of steps."""
        with self.stepper:
            for _ in range(number):
                output = self.stepper.step(self.state)
                self.state.advance(output.samples, output.digest, updated=output.is_applied)
                yield output


def test_one_exchange_a_step() -> None:
    run = Run([3.0, 2.0, 1.0])
    outputs = list(run.steps(3))
    assert [output.loss for output in outputs] == [3.0, 2.0, 1.0]
    assert [output.samples for output in outputs] == [range(2), range(2, 4), range(4, 6)]
    assert [output.digest for output in outputs] == [1, 3, 5]
    assert [output.learning_rate for output in outputs] == pytest.approx([0.1, 0.2, 0.3])
    assert run.engine.num_exchanges == 4, "the first step asks for the counts of its batch as well"


def test_a_rollback_asks_for_the_counts_again() -> None:
    run = Run([3.0, 2.0])
    steps = run.steps(2)
    next(steps)
    run.stepper.forget_next_batch()
    next(steps)
    assert run.engine.num_exchanges == 4


def test_a_spike_is_computed_again_before_it_is_skipped() -> None:
    run = Run([9.0, 9.0])
    (output,) = run.steps(1)
    assert not output.is_applied
    assert output.anomaly == "the loss is 9"
    assert run.engine.num_updates == 2
    assert run.policy.observed == [1]


def test_a_transient_fault_costs_no_step() -> None:
    run = Run([9.0, 2.0])
    (output,) = run.steps(1)
    assert output.is_applied
    assert output.loss == 2.0
    assert output.anomaly == "the loss is 9; computed again, they are 2 and 1: a transient fault"


def test_skipped_steps_are_not_computed() -> None:
    """Steps to skip, and steps without targets, reach neither the model nor the policy. Ranks still exchange their status."""
    run = Run([3.0], StubLoader(masked=STEP), StubPolicy(configured=0, rolled_back=2 * STEP))
    configured, masked, rolled_back, computed = run.steps(4)
    assert configured.skip_reason is SkipReason.CONFIGURED
    assert masked.skip_reason is SkipReason.NO_TARGETS
    assert rolled_back.skip_reason is SkipReason.ROLLED_BACK
    assert [output.is_planned for output in (configured, masked, rolled_back, computed)] == [True, False, True, False]
    assert rolled_back.skipped == "skipped after a rollback"
    assert math.isnan(configured.loss)
    assert computed.loss == 3.0
    assert run.policy.observed == [4]
    assert run.engine.num_exchanges == 5


def test_lost_data_end_the_step_on_all_ranks() -> None:
    run = Run([3.0], StubLoader(failing=STEP))
    steps = run.steps(2)
    next(steps)
    with pytest.raises(DataError, match="the data of step 2 cannot be read: .*the file server is gone"):
        next(steps)
    assert run.state.step == 1

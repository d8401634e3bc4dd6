"""The stepper without a model: steps that it computes, their repetitions, and exchanges between ranks."""

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megatape.config.sections.batches import BatchSizes
from megatape.data.training.batches.loader import Batch, Loader
from megatape.distributed.topology import Topology
from megatape.errors import DataError
from megatape.nn.targets import IGNORE_INDEX
from megatape.reliability.watch.pace import Pace
from megatape.training.progress import Progress
from megatape.training.steps.output import SkipReason
from megatape.training.steps.status import Requests
from megatape.training.steps.stepper import Stepper
from megatape.zero.passes.pass_result import GradientSums, PassResult
from megatape.zero.passes.stopwatch import Stopwatch
from megatape.zero.update.decision import Apply, Decide, Decision, Skip, Update

CPU = torch.device("cpu")
STEP = 2


class StubLoader(Loader):
    """Loader with two samples per step. Steps after `masked` samples have no targets, and after `failing` no data."""

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
    """Engine returning `losses` in turn, on one of the ranks that read the same samples."""

    def __init__(self, losses: list[float], reader: int = 0, num_readers: int = 1) -> None:
        self.device = CPU
        self.topology = Topology(0, 1, 0)
        self.mesh = {"sample": SimpleNamespace(size=num_readers, rank=reader), "tensor": SimpleNamespace(size=1)}
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
        if not math.isfinite(loss):
            return Update(math.nan, f"the loss is {loss}", Apply())
        return Update(1.0, None, decide(1.0))


class StubPolicy:
    """Policy skipping configured and rolled-back samples, and updates with a loss above 5."""

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
        return Apply()

    def observe(self, step: int, loss: float, update: Update) -> None:
        self.observed.append(step)


class Run:
    """Return a stepper using stand-ins for its parts."""

    def __init__(
        self,
        losses: list[float],
        loader: StubLoader | None = None,
        policy: StubPolicy | None = None,
        reader: int = 0,
        num_readers: int = 1,
    ) -> None:
        self.engine = StubEngine(losses, reader, num_readers)
        self.policy = policy or StubPolicy()
        self.progress = Progress(sequence_length=2)
        engine: Any = self.engine
        stepper_policy: Any = self.policy
        self.stepper = Stepper(engine, loader or StubLoader(), stepper_policy, lambda step: 0.1 * (step + 1), Requests, Pace())

    def steps(self, number: int) -> Iterator[Any]:
        """Yield step results."""
        with self.stepper:
            for _ in range(number):
                output = self.stepper.step(self.progress)
                self.progress.advance(output.samples, output.digest, updated=output.is_applied)
                yield output


def test_one_exchange_a_step() -> None:
    run = Run([3.0, 2.0, 1.0])
    outputs = list(run.steps(3))
    assert [output.loss for output in outputs] == [3.0, 2.0, 1.0]
    assert [output.samples for output in outputs] == [range(2), range(2, 4), range(4, 6)]
    assert [output.digest for output in outputs] == [1, 3, 5]
    assert [output.learning_rate for output in outputs] == pytest.approx([0.1, 0.2, 0.3])
    assert run.engine.num_exchanges == 4, "the first step asks for the counts of its batch as well"


@pytest.mark.parametrize(("reader", "digests"), [(0, [1, 3]), (1, [0, 0])])
def test_only_the_first_rank_of_a_sample_adds_its_digest(reader: int, digests: list[int]) -> None:
    """A digest added by every rank would exceed the integers of float64 with fewer samples."""
    run = Run([3.0, 2.0], reader=reader, num_readers=2)
    assert [output.digest for output in run.steps(2)] == digests


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
    assert output.anomaly == "the loss is 9; computed again, loss and gradient norm are 2 and 1: a transient fault"


def test_a_transient_nan_costs_no_step() -> None:
    run = Run([math.nan, 2.0])
    (output,) = run.steps(1)
    assert output.is_applied
    assert output.anomaly == "the loss is nan; computed again, loss and gradient norm are 2 and 1: a transient fault"
    assert run.policy.observed == [1]


def test_a_step_that_is_never_finite_is_skipped() -> None:
    run = Run([math.nan, math.nan])
    (output,) = run.steps(1)
    assert output.skip_reason == "the loss is nan"
    assert output.anomaly is None


def test_skipped_steps_are_not_computed() -> None:
    """Steps to skip, and steps without targets, reach neither the model nor the policy. Ranks still exchange their status."""
    run = Run([3.0], StubLoader(masked=STEP), StubPolicy(configured=0, rolled_back=2 * STEP))
    configured, masked, rolled_back, computed = run.steps(4)
    assert configured.not_computed is SkipReason.CONFIGURED
    assert masked.not_computed is SkipReason.NO_TARGETS
    assert rolled_back.not_computed is SkipReason.ROLLED_BACK
    assert [output.is_planned for output in (configured, masked, rolled_back, computed)] == [True, False, True, False]
    assert rolled_back.skip_reason == "skipped after a rollback"
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
    assert run.progress.step == 1

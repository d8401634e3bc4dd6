"""The decision about an update: made once per step, and only about a finite gradient."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from megatape.training.steps.spike_policy import Rollback
from megatape.zero.update.decision import Apply, Decision, Skip
from megatape.zero.update.gate import UpdateGate


class Policy:
    """Policy that returns one decision and remembers the gradient norms it was asked about."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.norms: list[float] = []

    def decide(self, norm: float) -> Decision:
        self.norms.append(norm)
        return self.decision


class Weights:
    """Weights that count their changes."""

    def __init__(self) -> None:
        self.num_changes = 0

    def apply(self) -> None:
        self.num_changes += 1


def make_gate(norm: float, weights: Weights) -> UpdateGate:
    """Return a gate in front of `weights`, at a stage with this gradient norm."""
    stage: Any = SimpleNamespace(gradient_norm=lambda: norm)
    weight_step: Any = weights
    return UpdateGate(stage, weight_step)


@pytest.mark.parametrize(
    ("decision", "skipped"),
    [
        (Apply(), None),
        (Apply("a spike that is only logged"), None),
        (Skip("a spike"), "a spike"),
        (Rollback("a spike"), "a spike"),
    ],
)
def test_all_calls_of_a_step_follow_one_decision(decision: Decision, skipped: str | None) -> None:
    policy = Policy(decision)
    weights = Weights()
    gate = make_gate(2.0, weights)
    gate.open(None, policy.decide)
    gate.step()
    gate.step()
    update = gate.close()
    assert policy.norms == [2.0]
    assert update.decision is decision
    assert update.grad_norm == 2.0
    assert update.nonfinite_reason is None
    assert update.skip_reason == skipped
    if skipped is None:
        assert update.is_applied
        assert weights.num_changes == 2
    else:
        assert not update.is_applied
        assert weights.num_changes == 0


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_skips_the_update(norm: float) -> None:
    policy = Policy(Apply())
    weights = Weights()
    gate = make_gate(norm, weights)
    gate.open(None, policy.decide)
    gate.step()
    update = gate.close()
    assert policy.norms == []
    assert update.nonfinite_reason == "the gradient norm is not finite"
    assert update.skip_reason == "the gradient norm is not finite"
    assert weights.num_changes == 0


def test_skipped_call_of_the_optimizer_skips_the_update() -> None:
    """In some combinations of stage and precision, DeepSpeed does not call the optimizer if the norm is not finite."""
    policy = Policy(Apply())
    gate = make_gate(2.0, Weights())
    gate.open(None, policy.decide)
    update = gate.close()
    assert math.isnan(update.grad_norm)
    assert update.nonfinite_reason == "the gradient norm is not finite"
    assert policy.norms == []


def test_a_reason_given_when_opening_comes_before_the_norm() -> None:
    policy = Policy(Apply())
    weights = Weights()
    gate = make_gate(math.nan, weights)
    gate.open("the loss is nan", policy.decide)
    gate.step()
    update = gate.close()
    assert update.nonfinite_reason == "the loss is nan"
    assert update.skip_reason == "the loss is nan"
    assert policy.norms == []
    assert weights.num_changes == 0


def test_each_step_has_its_own_decision() -> None:
    weights = Weights()
    gate = make_gate(2.0, weights)
    gate.open("the loss is nan", Policy(Apply()).decide)
    gate.step()
    gate.close()
    gate.open(None, Policy(Apply()).decide)
    gate.step()
    assert gate.close().is_applied
    assert weights.num_changes == 1


def test_a_closed_gate_lets_nothing_pass() -> None:
    gate = make_gate(2.0, Weights())
    gate.open(None, Policy(Apply()).decide)
    gate.close()
    with pytest.raises(AssertionError, match="outside"):
        gate.step()


@pytest.mark.parametrize("kind", [Skip, Rollback])
def test_no_update_is_skipped_without_a_reason(kind: type[Skip]) -> None:
    """A skipped update without a reason would look like an applied one in metrics and counts."""
    with pytest.raises(AssertionError, match="without a reason"):
        kind("")

"""The decision about an update: made once, and only about a finite one."""

import math

import pytest

from megatape.training.steps.spike_policy import Rollback
from megatape.zero.update import Decision, PendingUpdate, Skip, Take


class Policy:
    """Policy that returns one decision and remembers the gradient norms it was asked about."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.norms: list[float] = []

    def decide(self, norm: float) -> Decision:
        self.norms.append(norm)
        return self.decision


@pytest.mark.parametrize(
    ("decision", "skipped"),
    [
        (Take(), None),
        (Take("a spike that is only logged"), None),
        (Skip("a spike"), "a spike"),
        (Rollback("a spike"), "a spike"),
    ],
)
def test_decision_travels_with_the_result(decision: Decision, skipped: str | None) -> None:
    policy = Policy(decision)
    update = PendingUpdate(None, policy.decide).resolve(2.0)
    assert policy.norms == [2.0]
    assert update.decision is decision
    assert (update.grad_norm, update.fault, update.skip_reason, update.is_applied) == (2.0, None, skipped, skipped is None)


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_norm_that_is_not_finite_is_a_fault(norm: float) -> None:
    policy = Policy(Skip("a spike"))
    update = PendingUpdate(None, policy.decide).resolve(norm)
    assert policy.norms == []
    assert update.fault == update.skip_reason == "the gradient norm is not finite"


def test_earlier_fault_is_kept() -> None:
    policy = Policy(Take())
    pending = PendingUpdate("the loss is nan", policy.decide)
    assert pending.result is None
    update = pending.resolve(math.nan)
    assert pending.result is update
    assert update.fault == update.skip_reason == "the loss is nan"
    assert policy.norms == []


@pytest.mark.parametrize("kind", [Skip, Rollback])
def test_no_update_is_skipped_without_a_reason(kind: type[Skip]) -> None:
    """It would look like an applied one in metrics and counts."""
    with pytest.raises(AssertionError, match="without a reason"):
        kind("")

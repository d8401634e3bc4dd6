"""One update of the weights: the decision whether to apply it, and its result."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from megatape.optim.gated import Decision

# Decides about an update by its gradient norm before clipping. The same on all ranks.
Decide = Callable[[float], Decision]


@dataclass(frozen=True)
class Update:
    """Result of an update, applied unless `skipped` gives a reason.

    Attributes:
        grad_norm: Gradient norm before clipping. May not be finite.
        fault: Description of a loss or gradient that is not finite, or "".
        decision: Decision about the update. With a fault, none was asked for.
    """

    grad_norm: float
    fault: str
    decision: Decision

    @property
    def skipped(self) -> str:
        """Reason for skipping the update, or "". Weights and optimizer state are then bit-identical to those before."""
        if self.fault:
            return self.fault
        if self.decision.applies_update:
            return ""
        return self.decision.reason


class PendingUpdate:
    """An update in progress. It is resolved once, when its gradient norm is known.

    Args:
        fault: Fault known before the norm, or "".
        decide: Decides about an update without a fault.

    Attributes:
        fault: Fault found so far, or "".
        result: Result of the update, None until it is resolved.
    """

    def __init__(self, fault: str, decide: Decide) -> None:
        self.fault = fault
        self.result: Update | None = None
        self._decide = decide

    def resolve(self, norm: float) -> Update:
        """Decide about the update by its gradient norm before clipping, and return the result."""
        if not self.fault and not math.isfinite(norm):
            self.fault = "the gradient norm is not finite"
        decision = Decision()
        if not self.fault:
            decision = self._decide(norm)
        self.result = Update(norm, self.fault, decision)
        return self.result

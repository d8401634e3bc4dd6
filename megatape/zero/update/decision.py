"""Decision about an update of the weights, and its result."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Apply:
    """Decision to apply an update.

    Attributes:
        anomaly: Anomaly that is only reported, or None.
    """

    anomaly: str | None = None


@dataclass(frozen=True)
class Skip:
    """Decision to skip an update: weights and optimizer state stay bit-identical.

    Attributes:
        anomaly: Anomaly that is the reason for skipping. Never empty.
    """

    anomaly: str

    def __post_init__(self) -> None:
        assert self.anomaly, "an update is not skipped without a reason"


# Decision about an update, made once per step when the gradient norm is known.
Decision = Apply | Skip

# Decides about an update by its gradient norm before clipping. The same on all ranks.
Decide = Callable[[float], Decision]


@dataclass(frozen=True)
class Update:
    """Result of an update.

    Attributes:
        grad_norm: Gradient norm before clipping. May not be finite.
        nonfinite_reason: Reason for skipping an update that is not finite, such as "the loss is nan", or None if it is finite.
        decision: Decision about a finite update, else Apply.
    """

    grad_norm: float
    nonfinite_reason: str | None
    decision: Decision

    @property
    def is_applied(self) -> bool:
        """Whether the update has changed the weights. Otherwise weights and optimizer state are bit-identical to before."""
        return self.skip_reason is None

    @property
    def skip_reason(self) -> str | None:
        """Reason for skipping the update, or None if it was applied."""
        if self.nonfinite_reason is not None:
            return self.nonfinite_reason
        if isinstance(self.decision, Skip):
            return self.decision.anomaly
        return None

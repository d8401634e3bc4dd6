"""Result of one optimizer step."""

import math
from dataclasses import dataclass
from enum import Enum

from megatape.training.steps.spike_policy import Rollback
from megatape.training.steps.status import StepStatus
from megatape.zero.update.decision import Update


class SkipReason(Enum):
    """Reasons for skipping a step without computing it, in the words of logs and metrics."""

    CONFIGURED = "skipped (training.skip_samples)"
    ROLLED_BACK = "skipped after a rollback"
    NO_TARGETS = "its samples have no targets"


@dataclass(frozen=True)
class ComputedStep:
    """Loss and update of a step.

    Attributes:
        loss: Mean loss over the step's targets, nats.
        update: Result of the update.
        anomaly: Description of a spike, or None.
        forward_seconds: Duration of this rank's forward passes. At ZeRO stages 0 to 2 they wait for no other rank, unless ranks
            split sequences.
    """

    loss: float
    update: Update
    anomaly: str | None = None
    forward_seconds: float = 0.0


@dataclass(frozen=True)
class StepOutput:
    """Result of one optimizer step.

    Attributes:
        step: Step number, from 1.
        samples: Samples of the step, counted from the start of the run.
        learning_rate: Scheduled rate, before scaling it for each parameter group.
        digest: Digest of the samples (order.samples_digest).
        status: Status between this step and the next, summed over all ranks.
        computed: Loss and update, or None if the step was skipped without computing it.
        not_computed: Reason for skipping the step without computing it, or None if it was computed.
        read_seconds: Time in which this rank waited for its batches.
    """

    step: int
    samples: range
    learning_rate: float
    digest: int
    status: StepStatus
    computed: ComputedStep | None = None
    not_computed: SkipReason | None = None
    read_seconds: float = 0.0

    @property
    def description(self) -> str:
        """Label of the step in messages, with its learning rate and samples."""
        return f"step {self.step} (learning rate {self.learning_rate:.2e}, samples {self.samples[0]} to {self.samples[-1]})"

    @property
    def loss(self) -> float:
        """Mean loss over the step's targets, nats; NaN if it was not computed."""
        if self.computed is None:
            return math.nan
        return self.computed.loss

    @property
    def grad_norm(self) -> float:
        """Gradient norm before clipping; NaN if it was not computed."""
        if self.computed is None:
            return math.nan
        return self.computed.update.grad_norm

    @property
    def is_applied(self) -> bool:
        """Whether the step has changed the weights. Otherwise weights and optimizer state are bit-identical to before."""
        return self.skip_reason is None

    @property
    def skip_reason(self) -> str | None:
        """Reason for skipping the update, or None if it was applied: `not_computed`, values that are not finite, or a spike."""
        if self.not_computed is not None:
            return self.not_computed.value
        if self.computed is None:
            return None
        return self.computed.update.skip_reason

    @property
    def is_planned(self) -> bool:
        """Whether the configuration or a rollback skipped the step."""
        return self.not_computed in (SkipReason.CONFIGURED, SkipReason.ROLLED_BACK)

    @property
    def anomaly(self) -> str | None:
        """Description of a spike, or None."""
        if self.computed is None:
            return None
        return self.computed.anomaly

    @property
    def wants_rollback(self) -> bool:
        """Whether the spike policy decided to return to a checkpoint."""
        return self.computed is not None and isinstance(self.computed.update.decision, Rollback)

    @property
    def busy_seconds(self) -> float:
        """Time in which this rank read samples or made forward passes, so that other ranks may have waited for it."""
        if self.computed is None:
            return self.read_seconds
        return self.read_seconds + self.computed.forward_seconds

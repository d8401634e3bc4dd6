"""Result of one optimizer step, and the metrics that a run reports about it."""

import math
from dataclasses import dataclass, field
from typing import Any, Self

from megatape.training.steps.status import StepStatus
from megatape.training.validation.evaluator import Validation
from megatape.zero.update import Decision, Take

# Numbers of StepMetrics in every line of metrics.jsonl.
NUMBERS = ("step", "loss", "grad_norm", "lr", "tokens", "samples", "digest", "seconds", "peak_memory")


@dataclass(frozen=True)
class StepOutput:
    """Result of one optimizer step.

    Attributes:
        step: Number of the step, from 1.
        samples: Range of the step's samples, counted from the start of the run.
        learning_rate: Scheduled rate, before the scale of each parameter group.
        digest: Digest of the samples (order.samples_digest).
        status: Status between the step and the next one, summed over all ranks.
        loss: Mean loss over the step's targets, nats; NaN if it was not computed.
        grad_norm: Gradient norm before clipping; NaN if it was not computed.
        fault: Description of a loss or gradient that is not finite, or None.
        skipped: Reason for skipping the update (fault, spike policy or configuration), or None. Weights and optimizer state are
            then bit-identical to those before the step.
        is_planned: Whether the configuration or a rollback skipped the step without computing it.
        decision: Decision of the spike policy.
        anomaly: Description of a spike, or None.
        forward_seconds: Duration of this rank's forward passes. They wait for no other rank at ZeRO stages 0 to 2, unless ranks
            divide samples.
    """

    step: int
    samples: range
    learning_rate: float
    digest: int
    status: StepStatus
    loss: float = math.nan
    grad_norm: float = math.nan
    fault: str | None = None
    skipped: str | None = None
    is_planned: bool = False
    decision: Decision = field(default_factory=Take)
    anomaly: str | None = None
    forward_seconds: float = 0.0

    @property
    def is_applied(self) -> bool:
        """Whether the step has changed the weights."""
        return self.skipped is None

    @property
    def description(self) -> str:
        """Label of the step in messages, with its learning rate and samples."""
        return f"step {self.step} (learning rate {self.learning_rate:.2e}, samples {self.samples[0]} to {self.samples[-1]})"


@dataclass(frozen=True)
class StepMetrics:
    """Metrics of one optimizer step.

    Attributes:
        step: Number of the step, from 1.
        loss: Mean loss over the step's targets, nats.
        grad_norm: Gradient norm before clipping.
        lr: Scheduled learning rate.
        tokens: Number of tokens since the start of the run, including skipped steps.
        samples: Number of samples since the start of the run, including skipped steps.
        seconds: Duration of the step.
        peak_memory: Peak memory of the main rank's process in bytes, see hardware.peak_memory.
        validation: Result of the evaluation after the step, None without one.
        corpora: Number of samples of each corpus of a mixture.
        skipped: Reason for skipping the step, or "".
        digest: Digest of the step's samples (order.samples_digest).
    """

    step: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    samples: int
    seconds: float
    peak_memory: int
    validation: Validation | None
    corpora: dict[str, int] = field(default_factory=dict)
    skipped: str = ""
    digest: int = 0

    def values(self) -> dict[str, float]:
        """Return the numbers for a sink that draws curves, by name."""
        values = {
            "loss/train": self.loss,
            "gradient norm": self.grad_norm,
            "learning rate": self.lr,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "memory/peak GiB": self.peak_memory / 2**30,
        }
        if self.validation:
            values["loss/validation"] = self.validation.loss
            if self.validation.ema_loss is not None:
                values["loss/validation of the EMA"] = self.validation.ema_loss
            for name, loss in self.validation.parts.items():
                values[f"loss/validation of {name}"] = loss
        return values

    def record(self) -> dict[str, Any]:
        """Return the line of metrics.jsonl. Numbers that are not finite are null."""
        record: dict[str, Any] = {}
        for name in NUMBERS:
            number = getattr(self, name)
            if not math.isfinite(number):
                number = None
            record[name] = number
        if self.corpora:
            record["corpora"] = self.corpora
        if self.validation:
            record["validation_loss"] = self.validation.loss
            if self.validation.ema_loss is not None:
                record["ema_validation_loss"] = self.validation.ema_loss
            if self.validation.parts:
                record["validation_losses"] = self.validation.parts
            record["validation_selection"] = self.validation.selection
        if self.skipped:
            record["skipped"] = self.skipped
        return record

    @classmethod
    def parse(cls, record: dict[str, Any]) -> Self:
        """Return the metrics in a line of metrics.jsonl, without a validation.

        Raises:
            KeyError: An earlier version wrote the line.
        """
        numbers: dict[str, Any] = {}
        for name in NUMBERS:
            number = record[name]
            if number is None:
                number = math.nan
            numbers[name] = number
        return cls(**numbers, validation=None, corpora=record.get("corpora", {}), skipped=record.get("skipped", ""))

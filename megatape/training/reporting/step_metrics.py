"""Metrics of one step, as passed to sinks and written to metrics.jsonl."""

import math
from dataclasses import dataclass, field
from typing import Any, Self

from megatape.training.validation.result import Validation

# Fields of StepMetrics in every line of metrics.jsonl.
NUMBERS = ("step", "loss", "grad_norm", "lr", "tokens", "samples", "digest", "seconds", "peak_memory")


@dataclass(frozen=True)
class StepMetrics:
    """Metrics of one step.

    Attributes:
        step: Step number, from 1.
        loss: Mean loss over the step's targets, nats.
        grad_norm: Gradient norm before clipping.
        lr: Scheduled learning rate.
        tokens: Tokens since the start of the run, including skipped steps.
        samples: Samples since the start of the run, including skipped steps.
        seconds: Step duration.
        peak_memory: Peak memory of the main rank in bytes, see hardware.peak_memory.
        validation: Evaluation after the step, or None if none was due.
        corpora: Samples of each corpus in a mixture, since the start of the run.
        skipped: Reason for skipping the step, or "".
        digest: Digest of the step's samples (order.samples_digest).
        goodput: Share of the time since the run's first start that new steps took, or None if unknown. Not recorded, because
            events.jsonl has the parts.
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
    goodput: float | None = None

    def values(self) -> dict[str, float]:
        """Return name -> number for sinks that draw curves."""
        values = {
            "loss/train": self.loss,
            "gradient norm": self.grad_norm,
            "learning rate": self.lr,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "memory/peak GiB": self.peak_memory / 2**30,
        }
        if self.goodput is not None:
            values["speed/goodput"] = self.goodput
        if self.validation:
            values["loss/validation"] = self.validation.loss
            if self.validation.ema_loss is not None:
                values["loss/validation of the EMA"] = self.validation.ema_loss
            for name, loss in self.validation.parts.items():
                values[f"loss/validation of {name}"] = loss
        return values

    def record(self) -> dict[str, Any]:
        """Return the step's line in metrics.jsonl. Non-finite numbers are null."""
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
        """Parse a line of metrics.jsonl, without its validation.

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

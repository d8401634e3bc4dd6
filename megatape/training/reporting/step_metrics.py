"""Metrics of one optimizer step, in the form in which sinks and metrics.jsonl receive them."""

import math
from dataclasses import dataclass, field
from typing import Any, Self

from megatape.training.validation.result import Validation

# Numbers of StepMetrics in every line of metrics.jsonl.
NUMBERS = ("step", "loss", "grad_norm", "lr", "tokens", "samples", "digest", "seconds", "peak_memory")


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

"""The metrics of one optimizer step."""

import math
from dataclasses import dataclass, field
from typing import Any, Self

from megatape.training.evaluation import Validation

NUMBERS = ("step", "loss", "grad_norm", "lr", "tokens", "samples", "digest", "seconds", "peak_memory")  # of each step


@dataclass(frozen=True)
class StepMetrics:
    """step: its number, from 1. loss: mean over its targets, nats. grad_norm: before clipping. lr: learning rate. tokens,
    samples: since the beginning of the run, those of steps that were left out included. seconds: of this step. peak_memory:
    bytes that the main rank's process has used at most, as `hardware.peak_memory` counts. validation: None where the step was
    not evaluated. corpora: of the samples, those of each corpus of a mixture. skipped: why the step was left out, or "".
    digest: of its samples (order.samples_digest)."""

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

    def record(self) -> dict[str, Any]:
        """The line of metrics.jsonl. Numbers that are not finite are null."""
        numbers = {name: getattr(self, name) for name in NUMBERS}
        record: dict[str, Any] = {name: number if math.isfinite(number) else None for name, number in numbers.items()}
        if self.corpora:
            record["corpora"] = self.corpora
        if self.validation:
            record["validation_loss"] = self.validation.loss
            if self.validation.corpora:
                record["validation_losses"] = self.validation.corpora
        if self.skipped:
            record["skipped"] = self.skipped
        return record

    @classmethod
    def parse(cls, record: dict[str, Any]) -> Self:
        """The metrics in a line of metrics.jsonl, without a validation. Raises KeyError if an earlier version wrote it."""
        numbers: dict[str, Any] = {name: math.nan if record[name] is None else record[name] for name in NUMBERS}
        return cls(**numbers, validation=None, corpora=record.get("corpora", {}), skipped=record.get("skipped", ""))

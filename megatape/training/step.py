"""The metrics of one optimizer step."""

from dataclasses import dataclass
from typing import Any

from megatape.training.evaluation import Validation


@dataclass(frozen=True)
class StepMetrics:
    """step: its number, from 1. loss: mean over its targets, nats. grad_norm: before clipping. lr: learning rate. tokens,
    samples: since the beginning of the run. seconds: of this step. peak_memory: bytes that the main rank's process has used at
    most, as `hardware.peak_memory` counts. validation: None where the step was not evaluated."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    samples: int
    seconds: float
    peak_memory: int
    validation: Validation | None

    def record(self) -> dict[str, Any]:
        """The line of metrics.jsonl."""
        names = ("step", "loss", "grad_norm", "lr", "tokens", "samples", "seconds", "peak_memory")
        evaluated = {"validation_loss": self.validation.loss} if self.validation else {}
        return {name: getattr(self, name) for name in names} | evaluated

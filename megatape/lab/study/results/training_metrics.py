"""Metrics of a finished training, read from its run directory."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

from megatape.data.training.selection import EARLIER_SELECTION, Selection
from megatape.run_folder import RunFolder, read_steps

# Number of points on a loss curve.
NUM_POINTS = 50


@dataclass(frozen=True)
class TrainingMetrics:
    """Metrics of a run, in the order of its steps.

    Attributes:
        steps: Step numbers.
        losses: Loss of each step in nats, None for a skipped step.
        seconds: Seconds per step.
        peak_memory: Peak device memory in bytes, 0 if earlier versions did not record it.
        validation_loss: Loss in nats on all validation samples after the last step.
        validation_losses: Loss on each data part evaluated separately, by part name.
        selection: Rule by which validation samples were selected.
    """

    steps: list[int]
    losses: list[float | None]
    seconds: list[float]
    peak_memory: int
    validation_loss: float
    validation_losses: dict[str, float]
    selection: Selection

    @classmethod
    def read(cls, run: RunFolder) -> Self:
        """Read the metrics of a complete run. Raises FileNotFoundError if it has none."""
        entries = list(read_steps(run.metrics))
        last = entries[-1]
        return cls(
            steps=[entry["step"] for entry in entries],
            losses=[entry["loss"] for entry in entries],
            seconds=[entry["seconds"] for entry in entries],
            peak_memory=max(entry.get("peak_memory", 0) for entry in entries),
            validation_loss=last["validation_loss"],
            validation_losses=last.get("validation_losses", {}),
            selection=last.get("validation_selection", EARLIER_SELECTION),
        )


def loss_curve(losses: Sequence[float | None]) -> dict[int, float]:
    """Return the mean loss in each of NUM_POINTS equal parts of a run, by last step of a part.

    Args:
        losses: Loss of each step, None for a skipped step.
    """
    ends = [len(losses) * part // NUM_POINTS for part in range(NUM_POINTS + 1)]
    curve = {}
    for begin, end in itertools.pairwise(ends):
        if begin < end:
            curve[end] = mean_loss(losses[begin:end])
    return curve


def mean_loss(losses: Sequence[float | None]) -> float:
    """Return the mean loss without skipped steps, NaN if all were skipped."""
    computed = [loss for loss in losses if loss is not None]
    if not computed:
        return math.nan
    return fmean(computed)

"""Figures from the metrics of a run: validation losses and the curve of the training loss."""

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from megatape.data.training.selection import EARLIER_SELECTION, NEW_SELECTION, Selection
from megatape.lab.study.outcomes.outcome import VALIDATION_LOSS

# Number of points on a loss curve.
NUM_POINTS = 50

# Figures, curve and axes of an Outcome.
Measurements = tuple[dict[str, float], dict[int, float], tuple[str, str]]


def validation_figures(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return the validation losses in a line of metrics: of all samples, and of each part of the data that has one."""
    figures = {VALIDATION_LOSS: entry["validation_loss"]}
    for name, loss in entry.get("validation_losses", {}).items():
        figures[f"{VALIDATION_LOSS} of {name}"] = loss
    return figures


def selection_of(entries: Sequence[Mapping[str, Any]]) -> Selection:
    """Return the selection of samples in the last evaluation of a run.

    Args:
        entries: Lines of metrics. Without lines, the result is the selection of new runs.
    """
    if not entries:
        return NEW_SELECTION
    selection: Selection = entries[-1].get("validation_selection", EARLIER_SELECTION)
    return selection


def loss_curve(losses: Sequence[float | None]) -> dict[int, float]:
    """Return the mean losses of NUM_POINTS equal parts of a run, by the last step of each part.

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
    """Return the mean of the losses that are not None, NaN if there are none."""
    made = [loss for loss in losses if loss is not None]
    if not made:
        return math.nan
    return fmean(made)

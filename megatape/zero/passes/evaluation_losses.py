"""Evaluation losses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class EvaluationLosses:
    """Evaluation losses, in nats per target.

    Attributes:
        mean: Mean loss over all targets; NaN without any.
        groups: Mean loss by group of batches. Groups without targets are missing.
    """

    mean: float
    groups: dict[str, float]

    @classmethod
    def from_sums(cls, groups: Sequence[str], losses: Sequence[float], targets: Sequence[float], num_counts: float) -> Self:
        """Return the losses from sums over all ranks.

        Args:
            groups: Group names.
            losses: Summed loss by group.
            targets: Number of targets by group.
            num_counts: Times that `targets` counts a target, over the times that `losses` counts its loss: context- times
                sequence-parallel ranks.
        """
        means = {}
        for group, loss, num_targets in zip(groups, losses, targets, strict=True):
            if num_targets:
                means[group] = loss * num_counts / num_targets
        mean = math.nan
        if means:
            mean = sum(losses) * num_counts / sum(targets)
        return cls(mean, means)

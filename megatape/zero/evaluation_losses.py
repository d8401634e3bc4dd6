"""Losses of an evaluation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class EvaluationLosses:
    """Losses of an evaluation, in nats per target.

    Attributes:
        mean: Mean loss over the targets of all batches; NaN if there are none.
        groups: Mean loss of each group of batches, without groups that have no targets.
    """

    mean: float
    groups: dict[str, float]

    @classmethod
    def from_sums(cls, groups: Sequence[str], losses: Sequence[float], targets: Sequence[float], num_counts: float) -> Self:
        """Return the losses from sums over all ranks.

        Args:
            groups: Names of the groups.
            losses: Sum of the losses of each group.
            targets: Number of targets of each group.
            num_counts: Number of times that `targets` count each target whose loss `losses` count once.
        """
        means = {}
        for group, loss, count in zip(groups, losses, targets, strict=True):
            if count:
                means[group] = loss * num_counts / count
        mean = math.nan
        if means:
            mean = sum(losses) * num_counts / sum(targets)
        return cls(mean, means)

"""Passkey results: accuracy by length and depth."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING, Any

from megatape.lab.pictures import Grid, heat_map
from megatape.lab.tasks.engine.result import Interval, Measure, wilson

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Score:
    """Results at one length and depth.

    Attributes:
        length: Text length in tokens.
        depth: Share of the garbage before the number, None for all depths or without depths.
        tokens: Mean number of prompt tokens.
        correct: Number of right answers.
        trials: Number of questions.
    """

    length: int
    depth: float | None
    tokens: float
    correct: int
    trials: int

    @property
    def share(self) -> float:
        """Share of right answers, 0 to 1."""
        return self.correct / self.trials

    @property
    def accuracy(self) -> float:
        """Right answers in %."""
        return 100 * self.share

    @property
    def error(self) -> float:
        """Binomial standard error of the accuracy in %."""
        return 100 * math.sqrt(self.share * (1 - self.share) / self.trials)

    @property
    def interval(self) -> Interval:
        """Wilson interval of the accuracy in %."""
        return wilson(self.share, self.trials)


def pool_scores(scores: Iterable[Score]) -> list[Score]:
    """Combine consecutive scores with equal length and depth."""
    pooled = []
    for (length, depth), group in groupby(scores, lambda score: (score.length, score.depth)):
        members = list(group)
        tokens = fmean(member.tokens for member in members)
        correct = sum(member.correct for member in members)
        trials = sum(member.trials for member in members)
        pooled.append(Score(length, depth, tokens, correct, trials))
    return pooled


def measure_name(length: int) -> str:
    """Return the measure's name at a length."""
    return f"passkey at {length} (%)"


@dataclass(frozen=True)
class PasskeyScores:
    """Results at all lengths and depths, ordered by length, then depth."""

    protocol: str
    scores: list[Score]

    @property
    def by_length(self) -> list[Score]:
        """Results at each length, pooled over depths."""
        return pool_scores(replace(score, depth=None) for score in self.scores)

    @property
    def summary(self) -> str:
        parts = (f"{score.length} tokens {score.accuracy:.0f}%" for score in self.by_length)
        return f"passkey ({self.protocol}): {', '.join(parts)}"

    @property
    def measures(self) -> list[Measure]:
        """Accuracy at each length."""
        measures = []
        for score in self.by_length:
            name = measure_name(score.length)
            measures.append(Measure(name, score.accuracy, score.error, score.trials, score.interval))
        return measures

    def draw(self, figure: "Figure") -> None:
        """Draw a heat map of lengths (horizontal) and depths (vertical)."""
        rows: dict[float | None, list[float]] = {}
        for score in self.scores:
            rows.setdefault(score.depth, []).append(score.share)
        lengths = list(dict.fromkeys(score.length for score in self.scores))
        depths: list[float | str] = []
        for depth in rows:
            if depth is None:
                depths.append("any")
            else:
                depths.append(depth)
        labels = ("length (tokens)", "depth of the number")
        heat_map(figure, Grid(list(rows.values()), "right answers (%)", labels, (lengths, depths)))

    def describe(self) -> dict[str, Any]:
        cells = []
        for score in self.scores:
            percentages = {"accuracy (%)": score.accuracy, "error (%)": score.error, "interval (%)": score.interval}
            cells.append(asdict(score) | percentages)
        return {"cells": cells}

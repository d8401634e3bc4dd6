"""SCROLLS results, by set."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from megatape.lab.pictures import bars
from megatape.lab.tasks.engine.result import Measure, wilson
from megatape.lab.tasks.scores import MeanScore
from megatape.lab.tasks.scrolls.sets import TextSet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class SetScores:
    """Results of one set.

    Attributes:
        text_set: The set.
        scores: Mean scores by name, in points.
        num_questions: Number of questions.
    """

    text_set: TextSet
    scores: dict[str, MeanScore]
    num_questions: int

    @property
    def measure(self) -> Measure:
        """Score of the set's metric, with an interval if it is a proportion."""
        metric = self.text_set.metric
        score = self.scores[metric]
        interval = None
        if metric == "exact_match":
            interval = wilson(score.mean / 100, self.num_questions)
        return Measure(self.text_set.label, score.mean, score.error, self.num_questions, interval)


@dataclass(frozen=True)
class ScrollsScores:
    """Results of all sets."""

    sets: list[SetScores]

    @property
    def summary(self) -> str:
        parts = [f"{measure.name} {measure.value:.2f}" for measure in self.measures]
        return f"scrolls: {', '.join(parts)}"

    @property
    def measures(self) -> list[Measure]:
        return [each.measure for each in self.sets]

    def draw(self, figure: "Figure") -> None:
        bars(figure, {measure.name: (measure.value, measure.error) for measure in self.measures}, "points")

    def describe(self) -> dict[str, Any]:
        sets = {}
        for each in self.sets:
            scores = {name: score._asdict() for name, score in each.scores.items()}
            sets[each.text_set.name] = {"questions": each.num_questions, "scores": scores}
        return sets

"""Table of a suite's scores by task, split and contender."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from megatape.data.synthetic.task import TEST
from megatape.lab.encodings import BASELINE
from megatape.lab.study.suite.scores.record import Record

# Encoding that the suite compares the others with.
REFERENCE = BASELINE
# If the scores of two seeds differ by more, one has probably learned the task and the other has not.
ALL_OR_NOTHING = 0.5


class TaskSplit(NamedTuple):
    """A task and one of its splits, by name."""

    task: str
    split: str


class CellKey(NamedTuple):
    """A cell's place in the tables. The contender is an encoding label or a baseline name."""

    task: str
    split: str
    contender: str


class TaskContender(NamedTuple):
    """A task name, and an encoding label or a baseline name."""

    task: str
    contender: str


@dataclass
class Cell:
    """Scores of a contender (an encoding or a baseline) on a split.

    Attributes:
        scores: Score by seed. A baseline without a seed has the key None.
        asked: Number of answers by seed.
        reason: Reason why there is no score. None if there is one, or if the contender was not run.
    """

    scores: dict[int | None, float] = field(default_factory=dict)
    asked: dict[int | None, int] = field(default_factory=dict)
    reason: str | None = None

    @property
    def spread(self) -> float:
        """Largest minus smallest score, 0 without scores."""
        if not self.scores:
            return 0.0
        return max(self.scores.values()) - min(self.scores.values())

    @property
    def is_all_or_nothing(self) -> bool:
        """Whether the seeds' scores are so far apart that some have learned the task and others have not."""
        return self.spread > ALL_OR_NOTHING

    @property
    def mean(self) -> float:
        """Mean score over seeds."""
        return float(np.mean(list(self.scores.values())))


class ScoreTable:
    """Scores of a suite, in the order of its tables.

    Args:
        records: Suite records.

    Attributes:
        pairs: Tasks and splits. Each task starts with the split drawn as in training.
        encodings: Encoding labels, the reference first.
        baselines: Baseline names.
        rates: Learning rates by task and contender.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._cells: dict[CellKey, Cell] = defaultdict(Cell)
        self.rates: dict[TaskContender, set[float]] = defaultdict(set)
        kinds: dict[str, str] = {}
        for record in sorted(records, key=lambda record: record.identity):
            cell = self._cells[CellKey(record.task, record.split, record.contender)]
            if record.score is None:
                cell.reason = record.reason
            else:
                cell.scores[record.seed] = record.score
                cell.asked[record.seed] = record.asked
            if record.learning_rate is not None:
                self.rates[TaskContender(record.task, record.contender)].add(record.learning_rate)
            kinds[record.contender] = record.kind

        pairs = {TaskSplit(key.task, key.split) for key in self._cells}
        encodings = [contender for contender, kind in kinds.items() if kind == "encoding"]
        self.pairs = sorted(pairs, key=lambda pair: (pair.task, pair.split != TEST, pair.split))
        self.encodings = sorted(encodings, key=lambda contender: (contender != REFERENCE, contender))
        self.baselines = sorted(contender for contender, kind in kinds.items() if kind == "baseline")

    def cell(self, task: str, split: str, contender: str) -> Cell:
        """Return the scores of a contender on a split, an empty cell if it was not run."""
        return self._cells.get(CellKey(task, split, contender), Cell())

    @property
    def tasks(self) -> dict[str, list[str]]:
        """Splits of each task."""
        tasks: dict[str, list[str]] = {}
        for task, split in self.pairs:
            tasks.setdefault(task, []).append(split)
        return tasks

    def generalization_splits(self, task: str) -> list[str]:
        """Splits of a task that differ from training, or all of them if none does."""
        splits = self.tasks[task]
        return [split for split in splits if split != TEST] or splits

    def task_score(self, task: str, contender: str, seed: int | None) -> float | None:
        """Return a contender's mean score over `generalization_splits`, or None if the seed has no score on one of them."""
        scores = []
        for split in self.generalization_splits(task):
            score = self.cell(task, split, contender).scores.get(seed)
            if score is None:
                return None
            scores.append(score)
        return float(np.mean(scores))

    def seeds(self, task: str, contender: str) -> list[int | None]:
        """Return the seeds with a `task_score`."""
        first, *_ = self.generalization_splits(task)
        return [seed for seed in self.cell(task, first, contender).scores if self.task_score(task, contender, seed) is not None]

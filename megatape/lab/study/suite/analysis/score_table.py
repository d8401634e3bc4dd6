"""Scores of a suite's records by task, split and row."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from megatape.data.synthetic.task import TEST
from megatape.lab.encodings import BASELINE
from megatape.lab.study.suite.scores.record import Record

# Encoding that the others are compared with in the tables of a suite.
REFERENCE = BASELINE
# If the scores of two seeds differ by more, one has probably learned the task and the other has not.
ALL_OR_NOTHING = 0.5

CellKey = tuple[str, str, str]  # task, split, row
Pair = tuple[str, str]  # task, split


@dataclass
class Cell:
    """Results of a row (an encoding or a baseline) on a split.

    Attributes:
        scores: Score by seed. The seed of a baseline is None if it has none.
        asked: Number of answers by seed.
        reason: Reason why there is no score. None if there is one, or if the row was not run.
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
    def mean(self) -> float:
        """Mean score over seeds."""
        return float(np.mean(list(self.scores.values())))


class ScoreTable:
    """Scores of a suite, in the order of its tables.

    Attributes:
        pairs: Tasks and splits. The split drawn as in training is the first of each task.
        encodings: Labels of encodings, the reference first.
        baselines: Names of baselines.
        rates: Learning rates by task and row.
    """

    def __init__(self, records: Iterable[Record], all_or_nothing_spread: float = ALL_OR_NOTHING) -> None:
        """Collect records.

        Args:
            records: Records of a suite.
            all_or_nothing_spread: Spread of the seeds' scores above which a task counts as all or nothing.
        """
        self._all_or_nothing_spread = all_or_nothing_spread
        self._cells: dict[CellKey, Cell] = defaultdict(Cell)
        self.rates: dict[Pair, set[float]] = defaultdict(set)
        kinds: dict[str, str] = {}
        for record in sorted(records, key=lambda record: record.model):
            cell = self._cells[record.task, record.split, record.row]
            if record.score is None:
                cell.reason = record.reason
            else:
                cell.scores[record.seed] = record.score
                cell.asked[record.seed] = record.asked
            if record.learning_rate is not None:
                self.rates[record.task, record.row].add(record.learning_rate)
            kinds[record.row] = record.kind

        pairs = {(task, split) for task, split, _ in self._cells}
        encodings = [row for row, kind in kinds.items() if kind == "encoding"]
        self.pairs = sorted(pairs, key=lambda pair: (pair[0], pair[1] != TEST, pair[1]))
        self.encodings = sorted(encodings, key=lambda row: (row != REFERENCE, row))
        self.baselines = sorted(row for row, kind in kinds.items() if kind == "baseline")

    def cell(self, task: str, split: str, row: str) -> Cell:
        """Return the results of a row on a split, empty if it was not run."""
        return self._cells.get((task, split, row), Cell())

    @property
    def tasks(self) -> dict[str, list[str]]:
        """The splits of each task."""
        tasks: dict[str, list[str]] = {}
        for task, split in self.pairs:
            tasks.setdefault(task, []).append(split)
        return tasks

    @cached_property
    def all_or_nothing(self) -> set[str]:
        """Tasks that some seeds of an encoding have learned and others have not."""
        tasks = set()
        for task, split in self.pairs:
            for row in self.encodings:
                if self.is_all_or_nothing(self.cell(task, split, row)):
                    tasks.add(task)
        return tasks

    def is_all_or_nothing(self, cell: Cell) -> bool:
        """Whether the scores of the seeds are so far apart that some have learned the task and others have not."""
        return cell.spread > self._all_or_nothing_spread

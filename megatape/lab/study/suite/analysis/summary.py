"""Summary of a suite's records: scores by encoding and split, tested differences from `rope`, ranks."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from megatape.data.synthetic.task import TEST
from megatape.lab.study.suite.analysis import hypothesis_tests as statistics
from megatape.lab.study.suite.scores.record import Record

# Encoding that the others are compared with.
REFERENCE = "rope"
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


@dataclass(frozen=True)
class Difference:
    """Difference of an encoding's scores from the reference's, over the seeds that both have.

    Attributes:
        seeds: Number of seeds that both have.
        mean: Mean over seeds.
        spread: Standard deviation of the paired differences. None with one seed, and on a task of `Summary.all_or_nothing`.
        interval: t interval of the mean at the summary's `confidence`. None in the same cases.
        p: p-value, corrected for all comparisons of the summary. None with one seed.
        needed: Number of seeds that would show the difference; without a spread, if the scores of the two encodings did not
            overlap. None with one seed, and above statistics.MAX_SEEDS.
    """

    seeds: int
    mean: float
    spread: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    needed: int | None = None

    @property
    def is_tested(self) -> bool:
        """Whether there are enough seeds for a test."""
        return self.p is not None

    @property
    def significant(self) -> bool:
        """Whether the encoding differs from the reference."""
        return self.p is not None and self.p < statistics.LEVEL


@dataclass(frozen=True)
class Ranks:
    """Encodings by mean rank over tasks, the best first.

    Attributes:
        mean_ranks: Mean rank by encoding.
        p: p-value of the Friedman test, whose null hypothesis is that all encodings are equally good.
        critical: Critical difference: two encodings differ significantly if their mean ranks differ by at least as much.
        left_out: Encodings that are not ranked -> number of (task, split) pairs they do not support.
        missing: Pairs without scores of an encoding that was not run on them.
        pairs: Pairs that count.
    """

    mean_ranks: dict[str, float]
    p: float
    critical: float
    left_out: dict[str, int]
    missing: list[Pair]
    pairs: list[Pair]

    def apart(self, row: str) -> list[str]:
        """Return the encodings that differ significantly from `row`: none unless the Friedman test finds a difference."""
        if self.p >= statistics.LEVEL:
            return []
        own_rank = self.mean_ranks[row]
        return [other for other, rank in self.mean_ranks.items() if abs(rank - own_rank) >= self.critical]


class Summary:
    """The records of a suite, in the order of its tables.

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

    @cached_property
    def differences(self) -> dict[CellKey, Difference]:
        """Differences of all encodings that have a seed in common with the reference."""
        differences: dict[CellKey, Difference] = {}
        for task, split in self.pairs:
            for row in self.encodings:
                if row == REFERENCE:
                    continue
                difference = self._uncorrected_difference(task, split, row)
                if difference is not None:
                    differences[task, split, row] = difference

        tested = {key: difference for key, difference in differences.items() if difference.is_tested}
        p_values = np.array([difference.p for difference in tested.values()], dtype=float)
        corrected = statistics.holm(p_values)
        # Holm's method ends at this level: exactly the significant differences are below it, and so are their intervals.
        level = statistics.LEVEL / max(1, int((corrected >= statistics.LEVEL).sum()))
        for (key, difference), p in zip(tested.items(), corrected, strict=True):
            strictest = statistics.LEVEL / len(tested)
            mean = difference.mean
            spread = difference.spread
            interval = None
            if spread is None:
                needed = statistics.seeds_to_separate(strictest)
            else:
                needed = statistics.seeds_needed(mean, spread, strictest)
                interval = statistics.t_interval(mean, spread, difference.seeds, level)
            differences[key] = replace(difference, p=float(p), needed=needed, interval=interval)
        return differences

    @property
    def confidence(self) -> float:
        """Confidence of all intervals. Exactly the intervals of significant differences do not contain zero."""
        tested = [difference for difference in self.differences.values() if difference.is_tested]
        num_insignificant = sum(not difference.significant for difference in tested)
        return 1 - statistics.LEVEL / max(1, num_insignificant)

    @property
    def comparisons(self) -> int:
        """Number of tested differences."""
        return sum(difference.is_tested for difference in self.differences.values())

    def _uncorrected_difference(self, task: str, split: str, row: str) -> Difference | None:
        """Return a difference with an uncorrected p-value, or None without a common seed."""
        own = self.cell(task, split, row)
        reference = self.cell(task, split, REFERENCE)
        seeds = [seed for seed in own.scores if seed in reference.scores]
        if not seeds:
            return None
        scores = np.array([own.scores[seed] for seed in seeds])
        reference_scores = np.array([reference.scores[seed] for seed in seeds])
        mean = (scores - reference_scores).mean()
        if len(seeds) == 1:
            return Difference(1, float(mean))
        if task in self.all_or_nothing:
            return Difference(len(seeds), float(mean), p=statistics.exact_p(scores, reference_scores))
        asked = np.array([own.asked[seed] for seed in seeds])
        reference_asked = np.array([reference.asked[seed] for seed in seeds])
        spread = statistics.spread_of_differences(scores, reference_scores, asked, reference_asked)
        p = statistics.paired_p(mean, spread, len(seeds))
        return Difference(len(seeds), float(mean), float(spread), p=float(p))

    @cached_property
    def ranks(self) -> Ranks | None:
        """The encodings by mean rank. None if fewer than two of them share a split.

        An encoding that does not support some split is not ranked: a rank there would count the missing support as a loss, and
        a mean without it would count fewer and other splits. The splits count on which all other encodings have a score.
        """
        left_out = {}
        ranked = []
        for row in self.encodings:
            num_unsupported = sum(self.cell(*pair, row).reason is not None for pair in self.pairs)
            if num_unsupported:
                left_out[row] = num_unsupported
            else:
                ranked.append(row)
        complete = [pair for pair in self.pairs if all(self.cell(*pair, row).scores for row in ranked)]
        missing = [pair for pair in self.pairs if pair not in complete]
        if len(ranked) < 2 or not complete:
            return None

        # task -> mean scores [splits, encodings]
        scores: dict[str, list[list[float]]] = defaultdict(list)
        for task, split in complete:
            scores[task].append([self.cell(task, split, row).mean for row in ranked])
        means, p, critical = statistics.rank([np.array(splits) for splits in scores.values()])
        by_rank = sorted(zip(ranked, means.tolist(), strict=True), key=lambda item: item[1])
        return Ranks(dict(by_rank), p, critical, left_out, missing, complete)

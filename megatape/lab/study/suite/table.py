"""The results of a suite: scores by row and split, paired differences to `rope`, ranks; as sections of text and tables."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean, stdev

import numpy as np

from megatape.data.synthetic.task import TEST
from megatape.lab.study.suite import statistics
from megatape.lab.study.suite.records import Record
from megatape.lab.study.suite.statistics import LEVEL, MAX_SEEDS, POWER
from megatape.utils.tables import Table, markdown
from megatape.utils.units import plural

REFERENCE = "rope"
BETTER = "▲"
WORSE = "▼"
NOT_RUN = "not run"
NOT_APPLICABLE = "n/a"
ALL_OR_NOTHING = 0.5  # seeds whose scores differ by more look like some that learned the task and some that did not
Place = tuple[str, str, str]  # task, split, row
Pair = tuple[str, str]  # task, split


@dataclass
class Cell:
    """A row's results on a split.

    Attributes:
        scores: Score by seed; a baseline's by None if it has no seed.
        asked: Number of answers by seed, in the same way.
        reason: Reason why there is no score; None where there is one, or where the row was not run.
    """

    scores: dict[int | None, float] = field(default_factory=dict)
    asked: dict[int | None, int] = field(default_factory=dict)
    reason: str | None = None


def spread_of_seeds(cell: Cell) -> float:
    """The largest score of a cell minus the smallest one."""
    return max(cell.scores.values()) - min(cell.scores.values()) if cell.scores else 0.0


@dataclass(frozen=True)
class Difference:
    """Difference of an encoding's scores from the reference's, over the seeds that both have.

    Attributes:
        seeds: Number of seeds that both have.
        mean: Mean over seeds.
        spread: Standard deviation of the paired differences; None with one seed, and on a task of `Summary.all_or_nothing`.
        interval: t interval of the mean at the summary's `confidence`; None in the same cases.
        p: p-value, corrected for all comparisons of the summary; None with one seed.
        needed: Number of seeds that would show the difference, without a spread if they were all apart; None with one seed, and
            beyond statistics.MAX_SEEDS.
    """

    seeds: int
    mean: float
    spread: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    needed: int | None = None

    @property
    def significant(self) -> bool:
        """Whether the encoding differs from the reference."""
        return self.p is not None and self.p < statistics.LEVEL


@dataclass(frozen=True)
class Ranks:
    """Encodings by mean rank over tasks, the best first.

    Attributes:
        mean_ranks: Mean rank by encoding.
        p: p-value of the Friedman test: whether all encodings could be alike.
        critical: Difference of two mean ranks from which the two encodings differ significantly.
        left_out: Encodings that cannot be ranked, and on how many pairs each has no score because it is not applicable.
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
        """The encodings that differ significantly from `row`: none if the Friedman test finds no difference at all."""
        if self.p >= statistics.LEVEL:
            return []
        own = self.mean_ranks[row]
        return [other for other, rank in self.mean_ranks.items() if abs(rank - own) >= self.critical]


class Summary:
    """The records of a suite, in the order of its tables.

    Attributes:
        pairs: Task and split; of each task, the split drawn as in training comes first.
        encodings: Names of encodings, the reference first.
        rates: Learning rates of a task's row.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._cells: dict[Place, Cell] = defaultdict(Cell)
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
        self.pairs = sorted(pairs, key=lambda pair: (pair[0], pair[1] != TEST, pair[1]))
        self.encodings = sorted((row for row in kinds if kinds[row] == "encoding"), key=lambda row: (row != REFERENCE, row))
        self.baselines = sorted(row for row in kinds if kinds[row] == "baseline")

    def cell(self, task: str, split: str, row: str) -> Cell:
        """A row's results on a split, empty if it was not run."""
        return self._cells.get((task, split, row), Cell())

    @property
    def tasks(self) -> dict[str, list[str]]:
        """The splits of each task."""
        return {task: [split for other, split in self.pairs if other == task] for task, _ in self.pairs}

    @cached_property
    def all_or_nothing(self) -> set[str]:
        """The tasks of which an encoding's seeds are so far apart on a split that some have learned it and some have not."""
        return {
            task
            for task, split in self.pairs
            for row in self.encodings
            if spread_of_seeds(self.cell(task, split, row)) > ALL_OR_NOTHING
        }

    @cached_property
    def differences(self) -> dict[Place, Difference]:
        """Of all encodings that have a seed in common with the reference."""
        places = [(*pair, row) for pair in self.pairs for row in self.encodings if row != REFERENCE]
        found = {place: one for place in places if (one := self._difference(*place))}
        tested = {place: one for place, one in found.items() if one.p is not None}
        corrected = statistics.holm(np.array([one.p for one in tested.values()], dtype=float))
        # Holm's method ends at this level, which all significant differences pass and no other does; so do their intervals.
        level = statistics.LEVEL / max(1, int((corrected >= statistics.LEVEL).sum()))
        for (place, one), p in zip(tested.items(), corrected, strict=True):
            interval = None
            strictest = statistics.LEVEL / len(tested)
            if one.spread is None:
                needed = statistics.seeds_to_separate(strictest)
            else:
                needed = statistics.seeds_needed(one.mean, one.spread, strictest)
                interval = statistics.t_interval(one.mean, one.spread, one.seeds, level)
            found[place] = replace(one, p=float(p), needed=needed, interval=interval)
        return found

    @property
    def confidence(self) -> float:
        """Confidence of all intervals, of which exactly those of significant differences do not contain zero."""
        others = sum(one.p is not None and not one.significant for one in self.differences.values())
        return 1 - statistics.LEVEL / max(1, others)

    @property
    def comparisons(self) -> int:
        """How many differences were tested."""
        return sum(one.p is not None for one in self.differences.values())

    def _difference(self, task: str, split: str, row: str) -> Difference | None:
        """With a p-value that is not corrected yet."""
        cells = self.cell(task, split, row), self.cell(task, split, REFERENCE)
        seeds = [seed for seed in cells[0].scores if seed in cells[1].scores]
        if not seeds:
            return None
        scores = np.array([[cell.scores[seed] for seed in seeds] for cell in cells])
        asked = np.array([[cell.asked[seed] for seed in seeds] for cell in cells])
        mean = (scores[0] - scores[1]).mean()
        if len(seeds) == 1:
            return Difference(1, float(mean))
        if task in self.all_or_nothing:
            return Difference(len(seeds), float(mean), p=statistics.exact_p(*scores))
        spread = statistics.spread_of_differences(*scores, *asked)
        return Difference(len(seeds), float(mean), float(spread), p=float(statistics.paired_p(mean, spread, len(seeds))))

    @cached_property
    def ranks(self) -> Ranks | None:
        """The encodings by mean rank. None if fewer than two of them share a split.

        An encoding that is not applicable to some split is not ranked: a rank there would count what it cannot do as a loss,
        and a mean without it would count fewer and other splits. Of the rest, the splits count on which all have a score.
        """
        unable = {row: sum(self.cell(*pair, row).reason is not None for pair in self.pairs) for row in self.encodings}
        ranked = [row for row in self.encodings if not unable[row]]
        complete = [pair for pair in self.pairs if all(self.cell(*pair, row).scores for row in ranked)]
        if len(ranked) < 2 or not complete:
            return None
        scores: dict[str, list[list[float]]] = defaultdict(list)
        for pair in complete:
            scores[pair[0]].append([float(np.mean(list(self.cell(*pair, row).scores.values()))) for row in ranked])
        means, p, critical = statistics.rank([np.array(splits) for splits in scores.values()])
        mean_ranks = dict(sorted(zip(ranked, means.tolist(), strict=True), key=lambda item: item[1]))
        left_out = {row: count for row, count in unable.items() if count}
        return Ranks(mean_ranks, p, critical, left_out, [pair for pair in self.pairs if pair not in complete], complete)


@dataclass(frozen=True)
class Section:
    """A part of the results. tables: with their captions. notes: a list below them."""

    title: str
    text: str = ""
    tables: list[tuple[str, Table]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def summarize(records: Iterable[Record], not_run: Sequence[str]) -> str:
    """The results as Markdown.

    Args:
        records: Of the suite.
        not_run: A phrase for each thing that was asked for and not run.
    """
    return "\n\n".join(_markdown(section) for section in sections(Summary(records), not_run))


def sections(summary: Summary, not_run: Sequence[str]) -> list[Section]:
    """The results in the order of their display: one leading table, ranks, each task, learning rates, what is missing."""
    if not summary.pairs:
        return [Section("Scores", "Nothing has been scored yet."), _not_run(not_run)]
    tasks = [_task(summary, task, splits) for task, splits in summary.tasks.items()]
    return [_overview(summary), _ranks(summary.ranks), *tasks, _learning_rates(summary), _not_run(not_run)]


def _overview(summary: Summary) -> Section:
    rows = [*summary.encodings, *summary.baselines]
    table = Table(
        ["", *summary.tasks],
        [(row, [_overview_cell(summary, task, splits, row) for task, splits in summary.tasks.items()]) for row in rows],
    )
    if summary.comparisons:
        tests = (
            f"{BETTER} or {WORSE} for each split on which an encoding is significantly better or worse than {REFERENCE}; "
            f"without one, the difference is not significant. Significant: p < {LEVEL} of the paired t-test over seeds, or of "
            f"the exact permutation test on a task that some seeds of an encoding learn and others do not, corrected by Holm's "
            f"method for all {summary.comparisons:,} comparisons below."
        )
    else:
        tests = f"No difference could be tested: that takes two seeds of {REFERENCE} and of another encoding."
    text = (
        f"Scores in %: the mean over a task's splits that differ from training, then the mean over seeds ± standard deviation. "
        f"(2 of 4): the mean of 2 splits; the others are not applicable or were not run, so do not compare it with a mean of "
        f"all. {tests}"
    )
    return Section("Scores", text, [("All tasks", table)])


def _overview_cell(summary: Summary, task: str, splits: list[str], row: str) -> str:
    others = [split for split in splits if split != TEST] or splits
    cells = {split: summary.cell(task, split, row) for split in others}
    scored = {split: cell for split, cell in cells.items() if cell.scores}
    if not scored:
        return NOT_APPLICABLE if any(cell.reason for cell in cells.values()) else NOT_RUN
    seeds = [seed for seed in next(iter(scored.values())).scores if all(seed in cell.scores for cell in scored.values())]
    text = _spread([fmean(cell.scores[seed] for cell in scored.values()) for seed in seeds]) if seeds else NOT_RUN
    if len(scored) < len(others):
        text += f" ({len(scored)} of {len(others)})"
    marks = "".join(_mark(summary.differences.get((task, split, row))) for split in others)
    return f"{text} {marks}".strip()


def _task(summary: Summary, task: str, splits: list[str]) -> Section:
    """Scores, differences and seeds needed of one task."""
    rows = [*summary.encodings, *summary.baselines]
    most = max((len(summary.cell(task, split, row).scores) for split in splits for row in summary.encodings), default=0)
    cells = [(row, split, summary.cell(task, split, row)) for row in rows for split in splits]
    compared = {row: [summary.differences.get((task, split, row)) for split in splits] for row in summary.encodings}
    differences = {row: found for row, found in compared.items() if any(found)}
    header = ["", *splits]
    tables = [
        ("Score in %", Table(header, [(row, [_score(summary, task, split, row, most) for split in splits]) for row in rows]))
    ]
    if differences:
        shown = [(row, [_difference(one) for one in found]) for row, found in differences.items()]
        confidence = f"{100 * summary.confidence:.4g}% t interval"
        tables.append((f"Difference from {REFERENCE} in percentage points ({confidence}), p", Table(header, shown)))
    if any(one is not None and one.p is not None for found in differences.values() for one in found):
        needed = [(row, [_needed(one) for one in found]) for row, found in differences.items()]
        tables.append((f"Seeds that would show a difference of this size with probability {POWER:.0%}", Table(header, needed)))
    notes = [f"{row} on {split}: {cell.reason}" for row, split, cell in cells if cell.reason]
    notes += [
        f"{row} on {split}: seeds differ by {100 * apart:.0f} points, as if some had learned the task and others not: all "
        f"differences of this task are tested by exact permutation"
        for row, split, cell in cells
        if (apart := spread_of_seeds(cell)) > ALL_OR_NOTHING
    ]
    alone = not {*summary.encodings} - {REFERENCE}
    text = "" if differences or alone else f"No seed is in common with {REFERENCE}, so there are no differences."
    return Section(task, text, tables, notes)


def _score(summary: Summary, task: str, split: str, row: str, most: int) -> str:
    cell = summary.cell(task, split, row)
    if not cell.scores:
        return NOT_APPLICABLE if cell.reason else NOT_RUN
    seeds = len(cell.scores)
    few = f" ({seeds} of {most} seeds)" if row in summary.encodings and seeds < most else ""
    return f"{_spread(list(cell.scores.values()))}{few} {_mark(summary.differences.get((task, split, row)))}".strip()


def _spread(scores: list[float]) -> str:
    """Mean and standard deviation in %, of one score only itself."""
    mean = f"{100 * fmean(scores):.1f}"
    return f"{mean} ± {100 * stdev(scores):.1f}" if len(scores) > 1 else mean


def _mark(difference: Difference | None) -> str:
    if difference is None or not difference.significant:
        return ""
    return BETTER if difference.mean > 0 else WORSE


def _difference(one: Difference | None) -> str:
    if one is None:
        return ""
    if one.p is None:
        return f"{_points(one.mean)}, one seed"
    if one.interval is None:
        return f"{_points(one.mean)}, exact p {one.p:.2g} {_mark(one)}".strip()
    low, high = (_points(end) for end in one.interval)
    return f"{_points(one.mean)} ({low} to {high}), p {one.p:.2g} {_mark(one)}".strip()


def _points(difference: float) -> str:
    """In percentage points, with a sign; what rounds to zero is +0.0."""
    return f"{round(100 * difference, 1) + 0:+.1f}"


def _needed(one: Difference | None) -> str:
    if one is None or one.p is None:
        return ""
    least = "at least " if one.interval is None else ""
    return f"more than {MAX_SEEDS:,}" if one.needed is None else f"{least}{one.needed:,}"


def _ranks(ranks: Ranks | None) -> Section:
    title = "Ranks"
    if ranks is None:
        return Section(title, "There are no ranks: fewer than two encodings have a score on the same split.")
    tasks = len({task for task, _ in ranks.pairs})
    found = "differences" if ranks.p < LEVEL else "no significant difference"
    text = (
        f"Mean rank of each encoding over tasks, and of a task over its splits; 1 is the best "
        f"({plural(len(ranks.pairs), 'split')}, {plural(tasks, 'task')}). The Friedman test finds {found} "
        f"(p = {ranks.p:.2g}). The critical difference of two mean ranks is {ranks.critical:.2f} "
        f"(Nemenyi test, level {LEVEL})."
    )
    rows = [(row, [f"{rank:.2f}", ", ".join(ranks.apart(row)) or "none"]) for row, rank in ranks.mean_ranks.items()]
    notes = [f"{row} is left out: not applicable to {plural(count, 'split')}" for row, count in ranks.left_out.items()]
    notes += [f"{task}, {split} is left out: not every encoding above has a score" for task, split in ranks.missing]
    return Section(title, text, [("Mean ranks", Table(["", "mean rank", "differs significantly from"], rows))], notes)


def _learning_rates(summary: Summary) -> Section:
    rows = [
        (row, [", ".join(f"{rate:g}" for rate in sorted(summary.rates[task, row])) for task in summary.tasks])
        for row in [*summary.encodings, *summary.baselines]
        if any(summary.rates[task, row] for task in summary.tasks)
    ]
    return Section("Learning rates", "", [("Learning rate of the runs", Table(["", *summary.tasks], rows))])


def _not_run(not_run: Sequence[str]) -> Section:
    return Section("Not run", "" if not_run else "Everything that was asked for was run.", notes=list(not_run))


def _markdown(section: Section) -> str:
    parts = [f"## {section.title}", section.text]
    for caption, table in section.tables:
        parts += [f"{caption}:", markdown(table.header, [[f"`{label}`", *cells] for label, cells in table.rows])]
    parts.append("\n".join(f"* {note}" for note in section.notes))
    return "\n\n".join(part for part in parts if part)

"""Sections of a suite's results: text and tables, also as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean

from megatape.lab.study.suite.analysis.differences import Difference
from megatape.lab.study.suite.analysis.hypothesis_tests import LEVEL, POWER
from megatape.lab.study.suite.analysis.overall import OverallDifference
from megatape.lab.study.suite.analysis.ranks import Ranks
from megatape.lab.study.suite.analysis.score_table import REFERENCE, ScoreTable, TaskContender
from megatape.lab.study.suite.analysis.summary import Summary
from megatape.lab.study.suite.tables.cell_text import (
    BETTER,
    FOUND_BETTER,
    FOUND_WORSE,
    WORSE,
    difference_text,
    mark,
    mean_and_deviation,
    needed_text,
    points,
)
from megatape.utils.text.tables import Table, markdown
from megatape.utils.text.units import plural

NOT_RUN = "not run"
NOT_APPLICABLE = "n/a"


@dataclass(frozen=True)
class Section:
    """Part of the results.

    Attributes:
        title: Title.
        text: Paragraph below the title, or None.
        tables: Tables with their captions.
        notes: List below the tables.
    """

    title: str
    text: str | None = None
    tables: list[tuple[str, Table]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def summarize(summary: Summary, not_run: Sequence[str]) -> str:
    """Return the results as Markdown.

    Args:
        summary: Scores with their statistics.
        not_run: Phrase for each requested part that has not run.
    """
    results = sections(summary, not_run)
    return "\n\n".join(_markdown(section) for section in results)


def sections(summary: Summary, not_run: Sequence[str]) -> list[Section]:
    """Return the results in display order: overview, all tasks together, ranks, each task, learning rates, missing parts."""
    if not summary.scores.pairs:
        return [Section("Scores", "Nothing has been scored yet."), _not_run(not_run)]
    tasks = [_task(summary, task, splits) for task, splits in summary.scores.tasks.items()]
    return [
        _overview(summary),
        _overall(summary),
        _ranks(summary.ranks),
        *tasks,
        _learning_rates(summary.scores),
        _not_run(not_run),
    ]


def _overview(summary: Summary) -> Section:
    """Return the table of all tasks, one column each."""
    rows = []
    for contender in [*summary.scores.encodings, *summary.scores.baselines]:
        cells = [_overview_cell(summary, task, contender) for task in summary.scores.tasks]
        rows.append((contender, cells))
    if summary.comparisons:
        tests = _explain_marks(summary)
    else:
        tests = f"No difference could be tested: that takes two seeds of {REFERENCE} and of another encoding."
    text = (
        f"Scores in %: the mean over a task's splits that differ from training, then the mean over seeds ± standard deviation. "
        f"(2 of 4): the mean of 2 splits; the others are not applicable or were not run, so do not compare it with a mean of "
        f"all. {tests}"
    )
    return Section("Scores", text, [("All tasks", Table(["", *summary.scores.tasks], rows))])


def _explain_marks(summary: Summary) -> str:
    """Explain the marks, with the number of seeds that they take."""
    comparisons = f"{summary.comparisons:,} comparisons"
    text = (
        f"{BETTER} or {WORSE} for each split on which an encoding is significantly better or worse than {REFERENCE}: "
        f"p < {LEVEL} of {summary.test.description}, corrected by Holm's method for all {comparisons} below. {FOUND_BETTER} or "
        f"{FOUND_WORSE}: only at a false discovery rate of {LEVEL:.0%} (Benjamini and Hochberg), at which "
        f"{summary.discoveries:,} of the {comparisons} differ in all. Without a mark, nothing was shown."
    )
    least = summary.test.least_seeds(LEVEL / summary.comparisons)
    if least is not None:
        text = f"{text} With this number of comparisons, no difference between fewer than {least} seeds is significant."
    return text


def _overview_cell(summary: Summary, task: str, contender: str) -> str:
    """Format a contender's mean score over the splits that differ from training, or over all splits if none does."""
    others = summary.scores.generalization_splits(task)
    cells = [summary.scores.cell(task, split, contender) for split in others]
    scored = [cell for cell in cells if cell.scores]
    if not scored:
        if any(cell.reason for cell in cells):
            return NOT_APPLICABLE
        return NOT_RUN
    means = []
    for seed in scored[0].scores:
        scores = [cell.scores[seed] for cell in scored if seed in cell.scores]
        if len(scores) == len(scored):
            means.append(fmean(scores))
    text = mean_and_deviation(means) if means else NOT_RUN
    if len(scored) < len(others):
        text += f" ({len(scored)} of {len(others)})"
    marks = [mark(summary.difference(task, split, contender)) for split in others]
    return f"{text} {''.join(marks)}".strip()


def _task(summary: Summary, task: str, splits: list[str]) -> Section:
    """Return the tables of a task: scores, differences and needed seeds."""
    header = ["", *splits]
    tables = [("Score in %", Table(header, _score_rows(summary, task, splits)))]

    difference_rows = []
    needed_rows = []
    has_tested = False
    for contender in summary.scores.encodings:
        differences = [summary.difference(task, split, contender) for split in splits]
        if any(differences):
            difference_rows.append((contender, [difference_text(difference) for difference in differences]))
            needed_rows.append((contender, [needed_text(difference) for difference in differences]))
            has_tested = has_tested or _has_tested(differences)
    if difference_rows:
        title = f"Difference from {REFERENCE} in percentage points"
        if summary.test.estimates_spread:
            title = f"{title} ({100 * summary.confidence:.4g}% {summary.test.interval_name})"
        tables.append((f"{title}, p by Holm's method, q by Benjamini and Hochberg's", Table(header, difference_rows)))
    if has_tested and summary.test.estimates_spread:
        title = f"Seeds that would show a difference of this size with probability {POWER:.0%}"
        tables.append((title, Table(header, needed_rows)))

    text = None
    has_others = any(contender != REFERENCE for contender in summary.scores.encodings)
    if has_others and not difference_rows:
        text = f"No seed is in common with {REFERENCE}, so there are no differences."
    return Section(task, text, tables, _task_notes(summary, task, splits))


def _has_tested(differences: list[Difference | None]) -> bool:
    """Whether at least one difference was tested."""
    return any(one is not None and one.is_tested for one in differences)


def _score_rows(summary: Summary, task: str, splits: list[str]) -> list[tuple[str, list[str]]]:
    """Format the scores of a task, naming the number of seeds if an encoding has fewer than another one."""
    max_seeds = 0
    for split, contender in product(splits, summary.scores.encodings):
        num_seeds = len(summary.scores.cell(task, split, contender).scores)
        max_seeds = max(max_seeds, num_seeds)
    rows = []
    for contender in summary.scores.encodings:
        rows.append((contender, [_score(summary, task, split, contender, max_seeds) for split in splits]))
    for contender in summary.scores.baselines:
        rows.append((contender, [_score(summary, task, split, contender, None) for split in splits]))
    return rows


def _task_notes(summary: Summary, task: str, splits: list[str]) -> list[str]:
    """Return the reasons for missing scores, then the cells with seeds far apart."""
    reasons = []
    far_apart = []
    for contender in [*summary.scores.encodings, *summary.scores.baselines]:
        for split in splits:
            cell = summary.scores.cell(task, split, contender)
            if cell.reason:
                reasons.append(f"{contender} on {split}: {cell.reason}")
            if cell.is_all_or_nothing:
                far_apart.append(
                    f"{contender} on {split}: seeds differ by {100 * cell.spread:.0f} points, as if some had learned the task "
                    f"and others not"
                )
    return reasons + far_apart


def _score(summary: Summary, task: str, split: str, contender: str, max_seeds: int | None) -> str:
    """Format a contender's score on a split, with the number of seeds if some are missing.

    Args:
        summary: Scores and differences.
        task: Task name.
        split: Split name.
        contender: Encoding or baseline.
        max_seeds: Number of seeds without missing ones. None for a baseline, which has no seeds to miss.
    """
    cell = summary.scores.cell(task, split, contender)
    if not cell.scores:
        if cell.reason:
            return NOT_APPLICABLE
        return NOT_RUN
    text = mean_and_deviation(list(cell.scores.values()))
    num_seeds = len(cell.scores)
    if max_seeds is not None and num_seeds < max_seeds:
        text += f" ({num_seeds} of {max_seeds} seeds)"
    mark_of_difference = mark(summary.difference(task, split, contender))
    return f"{text} {mark_of_difference}".strip()


def _ranks(ranks: Ranks | None) -> Section:
    """Return the mean ranks of the encodings, and the parts not ranked."""
    title = "Ranks"
    if ranks is None:
        return Section(title, "There are no ranks: no split that differs from training has scores of two encodings.")
    num_tasks = len({task for task, _ in ranks.pairs})
    finding = "no significant difference"
    if ranks.p < LEVEL:
        finding = "differences"
    text = (
        f"Mean rank of each encoding over {plural(num_tasks, 'task')}; 1 is the best. On a task, encodings are ranked by their "
        f"mean score over the splits that differ from training ({plural(len(ranks.pairs), 'split')} in all). Friedman's "
        f"test, with ranks permuted within tasks, finds {finding} (p = {ranks.p:.2g}). The critical difference of two "
        f"mean ranks is {ranks.critical:.2f} (Nemenyi test, level {LEVEL})."
    )
    rows = []
    for contender, rank in ranks.mean_ranks.items():
        apart = ", ".join(ranks.apart(contender)) or "none"
        rows.append((contender, [f"{rank:.2f}", apart]))
    notes = [
        f"{contender} is left out: not applicable to {plural(count, 'split')}" for contender, count in ranks.left_out.items()
    ]
    notes += [f"{task}, {split} is left out: not every encoding above has a score" for task, split in ranks.missing]
    return Section(title, text, [("Mean ranks", Table(["", "mean rank", "differs significantly from"], rows))], notes)


def _overall(summary: Summary) -> Section:
    """Return the differences from the reference over all tasks."""
    title = "Over all tasks"
    if not summary.overall:
        return Section(title, f"No encoding shares a seed with {REFERENCE} on all tasks.")
    text = (
        f"Difference from {REFERENCE} in the mean score over all tasks, each the mean over its splits that differ from "
        f"training, in percentage points. The interval is the {1 - LEVEL:.0%} {summary.test.interval_name} over seeds, not "
        f"corrected for the number of encodings. It says nothing about other tasks. An interval between -1 and +1 shows that "
        f"an encoding equals {REFERENCE} within one point on these tasks."
    )
    rows = []
    for contender, difference in summary.overall.items():
        rows.append((contender, [points(difference.mean, 2), _interval_text(difference)]))
    return Section(
        title, text, [(f"Difference from {REFERENCE}", Table(["", "difference", f"{1 - LEVEL:.0%} interval"], rows))]
    )


def _interval_text(difference: OverallDifference) -> str:
    """Format the interval of a difference over all tasks."""
    if difference.interval is None:
        return f"{plural(difference.seeds, 'seed')}: too few"
    low, high = difference.interval
    return f"{points(low, 2)} to {points(high, 2)}"


def _learning_rates(table: ScoreTable) -> Section:
    """Return the learning rates of encodings and baselines, skipping rows without one."""
    rows = []
    for contender in [*table.encodings, *table.baselines]:
        cells = []
        for task in table.tasks:
            rates = sorted(table.rates[TaskContender(task, contender)])
            cells.append(", ".join(f"{rate:g}" for rate in rates))
        if any(cells):
            rows.append((contender, cells))
    return Section("Learning rates", tables=[("Learning rate of the runs", Table(["", *table.tasks], rows))])


def _not_run(not_run: Sequence[str]) -> Section:
    """Return the list of parts that were not run."""
    text = None if not_run else "All requested parts were run."
    return Section("Not run", text, notes=list(not_run))


def _markdown(section: Section) -> str:
    """Format a section, skipping empty parts."""
    parts = [f"## {section.title}"]
    if section.text is not None:
        parts.append(section.text)
    for caption, table in section.tables:
        rows = [[f"`{label}`", *cells] for label, cells in table.rows]
        parts += [f"{caption}:", markdown(table.header, rows)]
    parts.append("\n".join(f"* {note}" for note in section.notes))
    return "\n\n".join(part for part in parts if part)

"""One page about a suite: its tables, differences from the reference, accuracy by length or distance, encodings, failures."""

import inspect
import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from megatape.accounting.cache import cache_bytes
from megatape.accounting.flops import forward_flops
from megatape.accounting.parameters import count_parameters
from megatape.config import parse_config
from megatape.data.synthetic.task import TEST
from megatape.lab.report.curves import Chart, Series
from megatape.lab.report.template import fill
from megatape.lab.study.comparison.variants import parse_variants
from megatape.lab.study.suite.baselines import BASELINES
from megatape.lab.study.suite.plan import Plan
from megatape.lab.study.suite.records import Record
from megatape.lab.study.suite.sizes import SIZES
from megatape.lab.study.suite.statistics import LEVEL
from megatape.lab.study.suite.summary import REFERENCE, Summary
from megatape.lab.study.suite.table import sections
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from megatape.utils.files import write_atomically
from megatape.utils.units import format_count

MAX_POINTS = 20  # of a curve; neighbouring lengths are pooled
MAX_FAILURES = 12


def write_page(
    records: list[Record], not_run: Sequence[str], plan: Plan, seconds: dict[str, list[float]], command: str, path: Path
) -> None:
    """Write the page, in place of an earlier one.

    Args:
        records: Scores of tasks that are in the registry.
        not_run: A phrase for each requested part of the suite that has not run.
        plan: Of the suite, whose sizes and splits the page describes.
        seconds: Of the runs of each row.
        command: Command line of the user.
        path: Of the page, in the suite's folder.
    """
    summary = Summary(records)
    known = {row: ENCODINGS[row.split(":")[0]] for row in summary.encodings if row.split(":")[0] in ENCODINGS}
    text = fill(
        "suite.html",
        ("charts.js",),
        command=command,
        out=shlex.quote(str(path.parent)),
        plan=plan,
        size=SIZES[plan.size],
        tokens=format_count(SIZES[plan.size].tokens),
        summary=summary,
        sections=sections(summary, not_run),
        reference=REFERENCE,
        level=LEVEL,
        encodings={row: entry.description for row, entry in known.items()},
        equations={row: _equation(entry.load()) for row, entry in known.items()},
        costs={row: _costs(row, plan, seconds[row]) for row in known},
        baselines={row: inspect.getdoc(BASELINES[row]) for row in summary.baselines if row in BASELINES},
        descriptions={task: SYNTHETIC_TASKS[task].description for task in summary.tasks},
        tasks={task.name: task for task in plan.tasks},
        failures=_failures(summary),
        charts=[chart for task, split in summary.pairs if (chart := _chart(records, task, split, summary.encodings))],
    )
    write_atomically(path, text.encode())


def _equation(encoding: type) -> str:
    """The paragraph of a class's docstring after its summary, where the encodings have their equations."""
    _, *rest = (inspect.getdoc(encoding) or "").split("\n\n")
    return inspect.cleandoc(rest[0]) if rest else ""


def _costs(row: str, plan: Plan, seconds: list[float]) -> dict[str, float]:
    """What a row's models of the plan's first task cost, at the length of its training samples, and its runs."""
    (variant,) = parse_variants(row)
    raw = SIZES[plan.size].config(plan.tasks[0], "data", plan.tasks[0].vocab_size)
    config = parse_config(raw, "suite", [*variant.settings, "run.directory=none"])
    model = config.model.model_copy(update={"mlp_size": variant.mlp_size(config)})
    length = config.data.sequence_length
    parameters = count_parameters(model)
    return {
        "parameters": parameters.total,
        "of the encoding": parameters.position,
        "FLOPs a token": forward_flops(model, length) / length,
        "cache, bytes a token": cache_bytes(model, 4 if config.training.precision == "float32" else 2),
        "seconds a run": median(seconds),
    }


def _failures(summary: Summary) -> list[tuple[float, str, str, str]]:
    """The largest losses of score from a task's test split to another split: loss, task, split and row."""
    found = []
    for task, split in summary.pairs:
        for row in summary.encodings:
            usual, scores = (summary.cell(task, each, row).scores.values() for each in (TEST, split))
            if usual and scores and (loss := fmean(usual) - fmean(scores)) > 0:
                found.append((loss, task, split, row))
    return sorted(found, reverse=True)[:MAX_FAILURES]


def _chart(records: list[Record], task: str, split: str, encodings: list[str]) -> Chart | None:
    """The chart of a split; None if no encoding has a curve there."""
    found = [r for r in records if (r.task, r.split, r.kind) == (task, split, "encoding") and r.curve]
    if not found:
        return None
    places = _places(found)
    curves = {group: [record for record in found if record.row == row] for group, row in enumerate(encodings)}
    series = [_series(group, curve, places) for group, curve in curves.items() if curve]
    axis = SYNTHETIC_TASKS[task].load().axis
    return Chart(f"{task}, {split}", "% right", axis, max(places), series, span=(0, 100))


def _places(records: list[Record]) -> dict[int, float]:
    """Length -> x of its answers: neighbours that make up one part of all answers are at their mean."""
    answers: Counter[int] = Counter()
    for record in records:
        answers.update({key: count for key, _, count in record.curve})
    pools: list[list[int]] = []
    for key in sorted(answers, reverse=True):  # the last pool may be small: it has short lengths, where answers are many
        if not pools or sum(answers[one] for one in pools[-1]) * MAX_POINTS >= answers.total():
            pools.append([])
        pools[-1].append(key)
    means = (sum(key * answers[key] for key in pool) / sum(answers[key] for key in pool) for pool in pools)
    return {key: mean for pool, mean in zip(pools, means, strict=True) for key in pool}


def _series(group: int, records: list[Record], places: dict[int, float]) -> Series:
    """Mean, least and largest share over the records at each place, in %."""
    shares: dict[float, list[float]] = defaultdict(list)
    for record in records:
        right = Counter[float]()
        answers = Counter[float]()
        for key, count, of in record.curve:
            right[places[key]] += count
            answers[places[key]] += of
        for place in answers:
            shares[place].append(100 * right[place] / answers[place])
    series = Series(group)
    for place, values in sorted(shares.items()):
        series.add(place, fmean(values), min(values), max(values))
    return series

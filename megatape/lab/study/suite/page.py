"""The page about a suite: scores, differences from the reference, curves by length or distance, encodings, failures."""

import inspect
import shlex
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from megatape.accounting.whole_model.flops import forward_flops
from megatape.accounting.whole_model.kv_cache import cache_bytes
from megatape.accounting.whole_model.parameters import count_parameters
from megatape.config import parse_config
from megatape.data.synthetic.task import TEST
from megatape.lab.report.charts import Chart, Series
from megatape.lab.report.template import CHART_SCRIPTS, fill
from megatape.lab.study.suite.analysis.hypothesis_tests import LEVEL
from megatape.lab.study.suite.analysis.score_table import REFERENCE, ScoreTable
from megatape.lab.study.suite.plan import Plan
from megatape.lab.study.suite.scores.baselines import BASELINES
from megatape.lab.study.suite.scores.record import Record
from megatape.lab.study.suite.sizes import SIZES
from megatape.lab.study.suite.tables.sections import sections
from megatape.lab.study.suite.tables.suite_results import SuiteResults
from megatape.lab.study.variants import parse_variants
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS, EncodingEntry
from megatape.utils.files.atomic import write_atomically
from megatape.utils.text.units import format_count

# Maximum number of points per curve. If there are more lengths, neighbors are pooled.
MAX_POINTS = 20
# Maximum number of failures on the page.
MAX_FAILURES = 12


@dataclass(frozen=True)
class EncodingCosts:
    """Costs of an encoding in a suite.

    Attributes:
        parameters: Number of weights in the model.
        position_parameters: Number of weights added by the encoding.
        token_flops: Forward FLOPs per token.
        cache_bytes: Cache size per token of a training sample, after export.
        run_seconds: Median seconds per run.
    """

    parameters: int
    position_parameters: int
    token_flops: float
    cache_bytes: int
    run_seconds: float

    def by_title(self) -> dict[str, float]:
        """Return the costs by their titles on the page."""
        return {
            "parameters": self.parameters,
            "of the encoding": self.position_parameters,
            "FLOPs per token": self.token_flops,
            "cache, bytes per token": self.cache_bytes,
            "seconds per run": self.run_seconds,
        }


class Failure(NamedTuple):
    """Score lost by a contender from a task's test split to another split."""

    loss: float
    task: str
    split: str
    contender: str


def write_page(results: SuiteResults, path: Path) -> None:
    """Write the page, replacing an earlier one.

    Args:
        results: Results of a suite.
        path: Path of the page, in the suite's folder.
    """
    plan = results.plan
    summary = results.summary
    registered = _registered(summary.scores.encodings)
    baselines = [contender for contender in summary.scores.baselines if contender in BASELINES]
    charts = []
    for task, split in summary.scores.pairs:
        chart = _chart(results.records, task, split, summary.scores.encodings)
        if chart is not None:
            charts.append(chart)
    text = fill(
        "suite.html",
        CHART_SCRIPTS,
        command=results.command,
        out=shlex.quote(str(path.parent)),
        plan=plan,
        size=SIZES[plan.size],
        tokens=format_count(SIZES[plan.size].tokens),
        summary=summary,
        design=results.design,
        sections=sections(summary, results.not_run),
        reference=REFERENCE,
        level=LEVEL,
        encodings={contender: entry.description for contender, entry in registered.items()},
        equations={contender: _equation(entry) for contender, entry in registered.items()},
        costs={contender: _costs(contender, plan, results.seconds[contender]).by_title() for contender in registered},
        baselines={contender: inspect.getdoc(BASELINES[contender]) for contender in baselines},
        descriptions={task: SYNTHETIC_TASKS[task].description for task in summary.scores.tasks},
        tasks={task.name: task for task in plan.tasks},
        failures=_failures(summary.scores),
        charts=charts,
    )
    write_atomically(path, text.encode())


def _registered(contenders: list[str]) -> dict[str, EncodingEntry]:
    """Return the registry's entry of each contender, without those of encodings that are no longer registered."""
    registered = {}
    for contender in contenders:
        encoding = contender.split(":")[0]
        if encoding in ENCODINGS:
            registered[contender] = ENCODINGS[encoding]
    return registered


def _equation(entry: EncodingEntry) -> str:
    """Return the equation that an encoding states itself, "" for none: its base class's would be that of another encoding."""
    return inspect.cleandoc(vars(entry.load()).get("equation", ""))


def _costs(contender: str, plan: Plan, seconds: list[float]) -> EncodingCosts:
    """Return an encoding's costs, for a model of the plan's first task at its training length."""
    (variant,) = parse_variants(contender)
    task = plan.tasks[0]
    raw = SIZES[plan.size].config(task, "data", task.vocab_size)
    config = parse_config(raw, "suite", [*variant.overrides, "run.directory=none"])
    model = config.model.model_copy(update={"mlp_size": variant.mlp_size(config)})
    length = config.data.sequence_length
    parameters = count_parameters(model)
    value_bytes = 2
    if config.training.precision == "float32":
        value_bytes = 4
    return EncodingCosts(
        parameters=parameters.total,
        position_parameters=parameters.position,
        token_flops=forward_flops(model, length) / length,
        cache_bytes=cache_bytes(model, value_bytes, length) // length,
        run_seconds=median(seconds),
    )


def _failures(table: ScoreTable) -> list[Failure]:
    """Return the largest failures, sorted by lost score."""
    failures = []
    for task, split in table.pairs:
        for contender in table.encodings:
            test_scores = table.cell(task, TEST, contender).scores.values()
            scores = table.cell(task, split, contender).scores.values()
            if not test_scores or not scores:
                continue
            loss = fmean(test_scores) - fmean(scores)
            if loss > 0:
                failures.append(Failure(loss, task, split, contender))
    return sorted(failures, reverse=True)[:MAX_FAILURES]


def _chart(records: list[Record], task: str, split: str, encodings: list[str]) -> Chart | None:
    """Return a split's chart, or None if no encoding has a curve."""
    split_records = []
    for record in records:
        is_in_split = record.task == task and record.split == split
        if is_in_split and record.kind == "encoding" and record.curve:
            split_records.append(record)
    if not split_records:
        return None
    x_by_length = _pool_lengths(split_records)
    curves = []
    for group, contender in enumerate(encodings):
        contender_records = [record for record in split_records if record.contender == contender]
        if contender_records:
            curves.append(_series(group, contender_records, x_by_length))
    axis = SYNTHETIC_TASKS[task].load().axis
    return Chart(f"{task}, {split}", "% right", axis, max(x_by_length), curves, span=(0, 100))


def _pool_lengths(records: list[Record]) -> dict[int, float]:
    """Pool neighboring lengths (or distances) until each pool has its share of the answers.

    Pooling starts with the longest length, so the last pool may be smaller: the shortest ones have many answers.

    Returns:
        Length -> mean length of the answers in its pool, its horizontal coordinate.
    """
    answers: Counter[int] = Counter()
    for record in records:
        answers.update({counts.key: counts.asked for counts in record.counts.by_key})

    pools: list[list[int]] = []
    pool_answers = 0
    for length in sorted(answers, reverse=True):
        if not pools or pool_answers * MAX_POINTS >= answers.total():
            pools.append([])
            pool_answers = 0
        pools[-1].append(length)
        pool_answers += answers[length]

    x_by_length = {}
    for pool in pools:
        num_answers = sum(answers[length] for length in pool)
        mean = sum(length * answers[length] for length in pool) / num_answers
        for length in pool:
            x_by_length[length] = mean
    return x_by_length


def _series(group: int, records: list[Record], x_by_length: dict[int, float]) -> Series:
    """Return an encoding's right answers in %: mean, minimum and maximum over its runs, a record each."""
    shares: dict[float, list[float]] = defaultdict(list)
    for record in records:
        right = Counter[float]()
        answers = Counter[float]()
        for counts in record.counts.by_key:
            x = x_by_length[counts.key]
            right[x] += counts.right
            answers[x] += counts.asked
        for x in answers:
            shares[x].append(100 * right[x] / answers[x])
    series = Series(group)
    for x, values in sorted(shares.items()):
        series.add(x, fmean(values), min(values), max(values))
    return series

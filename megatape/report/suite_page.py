"""One page about a suite: its tables, and accuracy by length or distance."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from megatape.files import write_atomically
from megatape.registry import SYNTHETIC_TASKS
from megatape.report.curves import Series, rounded
from megatape.report.template import fill
from megatape.study.suite.records import Record
from megatape.study.suite.summary import Summary
from megatape.study.suite.table import sections

MAX_POINTS = 20  # of a curve; neighbouring lengths are pooled


def write_page(records: Iterable[Record], not_run: Sequence[str], path: Path) -> None:
    """Write the page, in place of an earlier one. not_run: a phrase for each thing that was asked for and not run.

    All tasks of the records are in the registry.
    """
    records = list(records)
    summary = Summary(records)
    text = fill(
        "suite.html",
        ("charts.js",),
        sections=sections(summary, not_run),
        labels=summary.encodings,
        charts=[chart for task, split in summary.pairs if (chart := _chart(records, task, split, summary.encodings))],
    )
    write_atomically(path, text.encode())


def _chart(records: list[Record], task: str, split: str, encodings: list[str]) -> dict[str, Any] | None:
    """What charts.js draws of a split; None if no encoding has a curve there."""
    curves: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if (record.task, record.split, record.kind) == (task, split, "encoding") and record.curve:
            curves[record.row].append(record)
    if not curves:
        return None
    places = _places([record for own in curves.values() for record in own])
    return {
        "title": f"{task}, {split}",
        "unit": "% right",
        "axis": SYNTHETIC_TASKS[task].load().axis,
        "last": max(places),
        "log": False,
        "span": [0, 100],
        "wide": False,
        "series": [
            _series(curves[row], places) | {"group": group, "style": "line"}
            for group, row in enumerate(encodings)
            if row in curves
        ],
        "lines": [],
    }


def _places(records: list[Record]) -> dict[int, float]:
    """Where the answers of each length are shown: neighbours that make up one part of all answers, at their mean."""
    asked: Counter[int] = Counter()
    for record in records:
        asked.update({key: count for key, _, count in record.curve})
    pools: list[list[int]] = []
    for key in sorted(asked, reverse=True):  # what is left for the last pool is short, where answers are many
        if not pools or sum(asked[one] for one in pools[-1]) * MAX_POINTS >= asked.total():
            pools.append([])
        pools[-1].append(key)
    means = (sum(key * asked[key] for key in pool) / sum(asked[key] for key in pool) for pool in pools)
    return {key: mean for pool, mean in zip(pools, means, strict=True) for key in pool}


def _series(records: list[Record], places: dict[int, float]) -> Series:
    """Mean, least and largest share over the records at each place, in %."""
    shares: dict[float, list[float]] = defaultdict(list)
    for record in records:
        right, asked = Counter[float](), Counter[float]()
        for key, count, of in record.curve:
            right[places[key]] += count
            asked[places[key]] += of
        for place in asked:
            shares[place].append(100 * right[place] / asked[place])
    points: Series = {"x": [], "y": [], "low": [], "high": []}
    for place, values in sorted(shares.items()):
        for name, value in zip(points, (place, fmean(values), min(values), max(values)), strict=True):
            points[name].append(rounded(value))
    return points

"""Report of `compare`: tables, differences from the first encoding, and picture."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from megatape.accounting.whole_model.parameters import count_parameters
from megatape.lab.study.results.figures import BY_POSITION, Columns
from megatape.lab.study.results.plots import Row, draw_curves
from megatape.lab.study.results.report import (
    are_evaluated_differently,
    columns_of,
    describe_shape,
    describe_training,
    write_report,
)
from megatape.lab.study.results.text_result import TextResult
from megatape.utils.text.tables import markdown
from megatape.utils.text.units import format_number


@dataclass(frozen=True)
class TableRow:
    """A variant in a table.

    Attributes:
        label: Variant label.
        parameters: Number of weights.
        seeds: Figures (or differences) for each seed.
    """

    label: str
    parameters: int
    seeds: list[Columns]


@dataclass(frozen=True)
class ScoredVariant:
    """Results of a task for a variant.

    Attributes:
        label: Variant label.
        columns_by_seed: Seed -> values by column title.
    """

    label: str
    columns_by_seed: dict[int, Columns]


def report(
    rows: list[Row],
    scores: dict[str, list[ScoredVariant]],
    notes: list[str],
    command: str,
    out: Path,
) -> str:
    """Write comparison.md and comparison.png, and return the text.

    Args:
        rows: Variants with their results. The first variant is the reference of the others.
        scores: Results of each task by its title.
        notes: Costs of controls.
        command: The user's command line.
        out: Study folder.
    """
    config = rows[0].results[0].config
    setting = f"{describe_shape(config.model)}, {describe_training(config)}. Mean over seeds (minimum to maximum)."
    all_results: list[TextResult] = []
    for row in rows:
        all_results += row.results
    distinguish = are_evaluated_differently(all_results)
    figures = []
    for row in rows:
        seed_columns = [columns_of(result, distinguish) for result in row.results]
        figures.append(TableRow(row.label, _parameters(row), seed_columns))
    paragraphs = [f"    {command}", setting, *notes, *_tables(figures)]
    differences = _differences(rows, distinguish)
    if any(difference.seeds for difference in differences):
        paragraphs += [f"Difference from `{rows[0].label}` of the same seed:", *_tables(differences)]
    parameters_by_label = {row.label: row.parameters for row in figures}
    for title, scored in scores.items():
        listed = [variant for variant in scored if variant.label in parameters_by_label]
        paragraphs += _score_tables(title, listed, parameters_by_label)
    return write_report("comparison", paragraphs, lambda figure: draw_curves(figure, rows), out)


def _parameters(row: Row) -> int:
    return count_parameters(row.results[0].config.model).total


def _differences(rows: list[Row], distinguish: bool) -> list[TableRow]:
    """Return each variant's differences from the first variant, for the seeds that both have."""
    first, *others = rows
    reference = {result.seed: columns_of(result, distinguish) for result in first.results}
    differences = []
    for row in others:
        columns_by_seed = {result.seed: columns_of(result, distinguish) for result in row.results}
        differences.append(TableRow(row.label, _parameters(row), _subtract_seeds(columns_by_seed, reference)))
    return differences


def _subtract_seeds(columns_by_seed: dict[int, Columns], reference: dict[int, Columns]) -> list[Columns]:
    """Return the differences of columns that both have, for the seeds that both have."""
    differences = []
    for seed, columns in columns_by_seed.items():
        if seed in reference:
            common = [title for title in columns if title in reference[seed]]
            differences.append({title: columns[title] - reference[seed][title] for title in common})
    return differences


def _tables(rows: Sequence[TableRow]) -> list[str]:
    """Return the table of the figures, and that of losses by position if there are any."""
    figures = []
    by_position = []
    for row in rows:
        figures.append(replace(row, seeds=[_select(columns, by_position=False) for columns in row.seeds]))
        by_position.append(replace(row, seeds=[_select(columns, by_position=True) for columns in row.seeds]))
    tables = [_table(figures)]
    if any(any(row.seeds) for row in by_position):
        tables.append(_table(by_position))
    return tables


def _score_tables(title: str, scored: list[ScoredVariant], parameters_by_label: dict[str, int]) -> list[str]:
    """Return the tables of a task's results, and of their differences from the first variant with results."""
    if not scored:
        return []
    scores = []
    differences = []
    first, *others = scored
    for variant in scored:
        scores.append(TableRow(variant.label, parameters_by_label[variant.label], list(variant.columns_by_seed.values())))
    for variant in others:
        seed_differences = _subtract_seeds(variant.columns_by_seed, first.columns_by_seed)
        differences.append(TableRow(variant.label, parameters_by_label[variant.label], seed_differences))
    paragraphs = [f"Evaluated by `megatape evaluate {title}`:", _table(scores)]
    if any(difference.seeds for difference in differences):
        paragraphs += [f"Difference from `{first.label}` of the same seed:", _table(differences)]
    return paragraphs


def _select(columns: Columns, by_position: bool) -> Columns:
    """Return the losses by position, or all other columns."""
    return {title: value for title, value in columns.items() if title.startswith(BY_POSITION) == by_position}


def _table(rows: Sequence[TableRow]) -> str:
    titles: dict[str, None] = {}
    for row in rows:
        for columns in row.seeds:
            titles |= dict.fromkeys(columns)
    table = []
    for row in rows:
        spreads = []
        for title in titles:
            spreads.append(_spread([columns[title] for columns in row.seeds if title in columns]))
        table.append([f"`{row.label}`", f"{row.parameters:,}", str(len(row.seeds)), *spreads])
    return markdown(["encoding", "parameters", "seeds", *titles], table)


def _spread(values: list[float]) -> str:
    """Format mean, minimum and maximum."""
    if not values:
        return ""
    return f"{format_number(fmean(values))} ({format_number(min(values))} to {format_number(max(values))})"

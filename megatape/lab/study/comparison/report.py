"""Report on a comparison of encodings: its table, differences from the first encoding, and the picture."""

from pathlib import Path
from statistics import fmean

from megatape.accounting.parameters import count_parameters
from megatape.lab.study.outcomes.curves import Row, draw_curves
from megatape.lab.study.outcomes.outcome import Outcome
from megatape.lab.study.outcomes.report import (
    Metrics,
    are_evaluated_differently,
    describe_shape,
    describe_training,
    figures_of,
    write_report,
)
from megatape.utils.tables import markdown
from megatape.utils.units import format_number


def report(rows: list[Row], notes: list[str], command: str, out: Path) -> str:
    """Write comparison.md and comparison.png, and return the text.

    Args:
        rows: Variants and their outcomes. The others are compared with the first variant.
        notes: Costs of controls.
        command: Command line of the user.
        out: Folder of the comparison.
    """
    config = rows[0].outcomes[0].config
    setting = f"{describe_shape(config.model)}, {describe_training(config)}. Mean over seeds (minimum to maximum)."
    all_outcomes: list[Outcome] = []
    for _, outcomes in rows:
        all_outcomes += outcomes
    distinguish = are_evaluated_differently(all_outcomes)
    metrics = {label: [figures_of(outcome, distinguish) for outcome in outcomes] for label, outcomes in rows}
    paragraphs = [f"    {command}", setting, *notes, _table(rows, metrics)]
    differences = _differences(rows, distinguish)
    if any(differences.values()):
        first = rows[0].label
        paragraphs += [f"Difference from `{first}` of the same seed:", _table(rows[1:], differences)]
    return write_report("comparison", paragraphs, lambda figure: draw_curves(figure, rows), out)


def _differences(rows: list[Row], distinguish: bool) -> dict[str, list[Metrics]]:
    """Return the differences from the first variant for each seed that both have."""
    (_, first_outcomes), *others = rows
    reference = {outcome.seed: figures_of(outcome, distinguish) for outcome in first_outcomes}
    differences: dict[str, list[Metrics]] = {}
    for label, outcomes in others:
        differences[label] = []
        for outcome in outcomes:
            if outcome.seed in reference:
                metrics = figures_of(outcome, distinguish)
                differences[label].append(_subtract(metrics, reference[outcome.seed]))
    return differences


def _subtract(metrics: Metrics, reference: Metrics) -> Metrics:
    return {name: value - reference[name] for name, value in metrics.items() if name in reference}


def _table(rows: list[Row], metrics: dict[str, list[Metrics]]) -> str:
    """Return a table with a row for each variant and a column for each figure."""
    columns: dict[str, None] = {}
    for of_seeds in metrics.values():
        for of_seed in of_seeds:
            columns |= dict.fromkeys(of_seed)
    table = []
    for label, outcomes in rows:
        of_seeds = metrics[label]
        parameters = count_parameters(outcomes[0].config.model).total
        spreads = []
        for column in columns:
            spreads.append(_spread([of_seed[column] for of_seed in of_seeds if column in of_seed]))
        table.append([f"`{label}`", f"{parameters:,}", str(len(of_seeds)), *spreads])
    return markdown(["encoding", "parameters", "seeds", *columns], table)


def _spread(values: list[float]) -> str:
    """Format the mean, the minimum and the maximum of some values."""
    if not values:
        return ""
    return f"{format_number(fmean(values))} ({format_number(min(values))} to {format_number(max(values))})"

"""The table comparing models on one task."""

from megatape.lab.tasks.engine.result import Measure, PublishedRows
from megatape.utils.text.tables import markdown
from megatape.utils.text.units import format_number


def table(measures_by_model: dict[str, list[Measure]], paper: PublishedRows) -> str:
    """Format a Markdown table with a row per model, followed by published rows having any of the models' measures.

    Args:
        measures_by_model: Model label -> measures.
        paper: Published values.
    """
    columns: dict[str, None] = {}
    for measures in measures_by_model.values():
        columns |= dict.fromkeys(measure.name for measure in measures)

    rows: list[list[str]] = []
    for label, measures in measures_by_model.items():
        texts = {measure.name: _format_measure(measure) for measure in measures}
        rows.append([label, *(texts.get(name, "") for name in columns)])
    for label, values in paper.items():
        texts = {name: format_number(values[name]) for name in columns if name in values}
        if texts:
            rows.append([f"paper: {label}", *(texts.get(name, "") for name in columns)])
    return markdown(["model", *columns], rows)


def _format_measure(measure: Measure) -> str:
    """Format a value with its interval, or else its standard error."""
    text = format_number(measure.value)
    if measure.interval is not None:
        low, high = (format_number(end, 3) for end in measure.interval)
        return f"{text} ({low} to {high})"
    if measure.error is not None:
        return f"{text} ± {format_number(measure.error, 2)}"
    return text

"""The table that compares models on one task."""

from megatape.lab.tasks.engine.result import Measure
from megatape.utils.tables import markdown
from megatape.utils.units import format_number


def table(rows: dict[str, list[Measure]], paper: dict[str, dict[str, float]]) -> str:
    """Format measures as a Markdown table with a row for each model.

    The paper's rows are below those of the models, as far as they have the models' columns.

    Args:
        rows: Measures of each model, by its label.
        paper: Published values: row -> name of a measure -> value.
    """
    names = list(dict.fromkeys(measure.name for row in rows.values() for measure in row))
    cells = []
    for label, row in rows.items():
        by_name = {measure.name: _cell(measure) for measure in row}
        cells.append([label, *(by_name.get(name, "") for name in names)])
    for label, values in paper.items():
        published = {name: format_number(values[name]) for name in names if name in values}
        if published:
            cells.append([f"paper: {label}", *(published.get(name, "") for name in names)])
    return markdown(["model", *names], cells)


def _cell(measure: Measure) -> str:
    """Format a value with its interval or, without one, with its standard error."""
    text = format_number(measure.value)
    if measure.interval is not None:
        low, high = (format_number(end, 3) for end in measure.interval)
        return f"{text} ({low} to {high})"
    if measure.error is not None:
        return f"{text} ± {format_number(measure.error, 2)}"
    return text

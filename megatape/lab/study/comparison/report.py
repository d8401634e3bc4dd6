"""Report on a comparison of encodings: its table, differences from the first encoding, and the picture."""

from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from megatape.accounting.parameters import count_parameters
from megatape.config import Config, ModelConfig
from megatape.data.training.selection import Selection
from megatape.lab.pictures import save
from megatape.lab.study.outcomes.curves import Row, draw_curves
from megatape.lab.study.outcomes.outcome import PERPLEXITY, VALIDATION_LOSS, Outcome
from megatape.utils.tables import markdown
from megatape.utils.units import format_number, plural

# Beginnings of the names of figures measured on validation text.
TEXT_FIGURES = (VALIDATION_LOSS, PERPLEXITY)
SELECTION_NOTES: dict[Selection, str] = {
    "first": " (the first samples)",
    "spread": " (samples of the whole split)",
}

# Figures by column.
Metrics = dict[str, float]


def report(rows: list[Row], notes: list[str], command: str, out: Path) -> str:
    """Write comparison.md and comparison.png, and return the text.

    Args:
        rows: Variants and their outcomes. The others are compared with the first variant.
        notes: Costs of controls.
        command: Command line of the user.
        out: Folder of the comparison.
    """
    config = rows[0][1][0].config
    setting = f"{describe_shape(config.model)}, {describe_training(config)}. Mean over seeds (minimum to maximum)."
    all_outcomes: list[Outcome] = []
    for _, outcomes in rows:
        all_outcomes += outcomes
    distinguish = are_evaluated_differently(all_outcomes)
    metrics = {label: [figures_of(outcome, distinguish) for outcome in outcomes] for label, outcomes in rows}
    paragraphs = [f"    {command}", setting, *notes, _table(rows, metrics)]
    differences = _differences(rows, distinguish)
    if any(differences.values()):
        first = rows[0][0]
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


def are_evaluated_differently(outcomes: Iterable[Outcome]) -> bool:
    """Whether losses and perplexities were measured on different text, because an earlier version started some of the runs."""
    selections = {outcome.selection for outcome in outcomes if _has_text_figures(outcome)}
    return len(selections) > 1


def _has_text_figures(outcome: Outcome) -> bool:
    """Whether some figures were measured on validation text."""
    return any(name.startswith(TEXT_FIGURES) for name in outcome.figures)


def figures_of(outcome: Outcome, distinguish: bool) -> Metrics:
    """Return the figures of an outcome by column.

    Args:
        outcome: Results of a model.
        distinguish: Whether to add the selection of the validation text to the columns' names. Figures measured on different
            text are then in different columns and are not compared.
    """
    if not distinguish:
        return outcome.figures
    figures = {}
    for name, value in outcome.figures.items():
        if name.startswith(TEXT_FIGURES):
            name += SELECTION_NOTES[outcome.selection]
        figures[name] = value
    return figures


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


def write_report(name: str, paragraphs: list[str], draw: Callable[[Figure], object], out: Path) -> str:
    """Write NAME.md and NAME.png, and return the text and the paths.

    Args:
        name: Name of the files.
        paragraphs: Paragraphs of the text.
        draw: Draws the picture.
        out: Folder of the files.
    """
    text = "\n\n".join(paragraphs)
    text_file = out / f"{name}.md"
    picture = out / f"{name}.png"
    text_file.write_text(text + "\n", encoding="utf-8")
    save(picture, draw)
    return f"{text}\n\nwrote {text_file}, {picture}"


def describe_shape(model: ModelConfig) -> str:
    """Describe the size of a model."""
    return f"{plural(model.num_layers, 'layer')} of width {model.hidden_size}"


def describe_training(config: Config) -> str:
    """Describe the length of a training and its data."""
    training = config.training
    data = config.data
    return (
        f"{plural(training.steps, 'step')} of {training.global_batch_size} x {data.sequence_length} tokens of {data.path}, "
        f"{training.precision}"
    )

"""Parts that the reports of several studies share: the figures of outcomes by column, descriptions, and the files."""

from collections.abc import Callable, Iterable
from pathlib import Path

from matplotlib.figure import Figure

from megatape.config import Config, ModelConfig
from megatape.data.training.selection import Selection
from megatape.lab.pictures import save
from megatape.lab.study.outcomes.outcome import PERPLEXITY, VALIDATION_LOSS, Outcome
from megatape.utils.units import plural

# Beginnings of the names of figures measured on validation text.
TEXT_FIGURES = (VALIDATION_LOSS, PERPLEXITY)
SELECTION_NOTES: dict[Selection, str] = {
    "first": " (the first samples)",
    "spread": " (samples of the whole split)",
}

# Figures by column.
Metrics = dict[str, float]


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

"""Parts shared by the reports of `compare` and `finetune`: columns of figures, descriptions, and files."""

from collections.abc import Callable, Iterable
from pathlib import Path

from matplotlib.figure import Figure

from megatape.config import Config, ModelConfig
from megatape.data.training.selection import Selection
from megatape.lab.pictures import save
from megatape.lab.study.results.figures import Columns
from megatape.lab.study.results.text_result import TextResult
from megatape.utils.files.atomic import write_atomically
from megatape.utils.text.units import plural

SELECTION_NOTES: dict[Selection, str] = {
    "first": " (the first samples)",
    "spread": " (samples of the whole split)",
}


def are_evaluated_differently(results: Iterable[TextResult]) -> bool:
    """Whether losses and perplexities were measured on different text, because an earlier version started some of the runs."""
    selections = {result.selection for result in results if result.figures.depend_on_validation_text}
    return len(selections) > 1


def columns_of(result: TextResult, distinguish: bool) -> Columns:
    """Return the figures of a result by column title.

    Args:
        result: A model's result.
        distinguish: Whether titles say how validation text was selected. Figures measured on different text are then in
            different columns and are not compared.
    """
    if not distinguish:
        return result.figures.columns()
    return result.figures.columns(SELECTION_NOTES[result.selection])


def write_report(name: str, paragraphs: list[str], draw: Callable[[Figure], object], out: Path) -> str:
    """Write NAME.md and NAME.png, and return the text and the paths. Readers always see complete files.

    Args:
        name: Base name of the files.
        paragraphs: Text.
        draw: Draws the picture.
        out: Folder for the files.
    """
    text = "\n\n".join(paragraphs)
    text_file = out / f"{name}.md"
    picture = out / f"{name}.png"
    write_atomically(text_file, f"{text}\n".encode())
    save(picture, draw)
    return f"{text}\n\nwrote {text_file}, {picture}"


def describe_shape(model: ModelConfig) -> str:
    """Describe the model size."""
    return f"{plural(model.num_layers, 'layer')} of width {model.hidden_size}"


def describe_training(config: Config) -> str:
    """Describe the length of a training and its data."""
    training = config.training
    data = config.data
    return (
        f"{plural(training.steps, 'step')} of {training.global_batch_size} x {data.sequence_length} tokens of {data.path}, "
        f"{training.precision}"
    )

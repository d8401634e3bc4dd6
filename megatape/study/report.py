"""Text and picture of a study, in its folder."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from megatape.config import Config
from megatape.pictures import save


def write_report(name: str, paragraphs: list[str], draw: Callable[[Figure], object], out: Path) -> str:
    """Write NAME.md and NAME.png, which `draw` draws, into `out`; returns the text of the former, and where it is."""
    text = "\n\n".join(paragraphs)
    (out / f"{name}.md").write_text(text + "\n", encoding="utf-8")
    save(out / f"{name}.png", draw)
    return f"{text}\n\nwrote {out / f'{name}.md'}, {out / f'{name}.png'}"


def describe_shape(config: Config) -> str:
    """The size of a model."""
    return f"{config.model.num_layers} layers of width {config.model.hidden_size}"


def describe_training(config: Config) -> str:
    """The length of a training and its data."""
    training, data = config.training, config.data
    return (
        f"{training.steps} steps of {training.global_batch_size} x {data.sequence_length} tokens of {data.path}, "
        f"{training.precision}"
    )

"""Measures parameters, FLOPs, memory and time of the encodings."""

from typing import Literal

from megatape.commands.cli.output import ParagraphPrinter
from megatape.config import load_config
from megatape.lab.encodings import parse_encodings
from megatape.lab.paper import COST_LENGTH
from megatape.registry import ENCODINGS
from megatape.utils.values.options import CommandOptions, Count, option

EXAMPLE = "megatape benchmark efficiency --encodings rope,tape,fire --layers 4 --length 512"


class Options(CommandOptions):
    """Encodings and sizes to measure.

    Attributes:
        config: model configuration (default: the paper's 155M model)
        layers: number of layers (default: the model's)
        length: tokens per sequence (default: data.sequence_length, or 1024)
        batch: sequences per batch
        encodings: encodings to measure (default: all)
        checkpointing: values of training.activation_checkpointing to measure besides none
        llama: also time training steps with transformers' Llama
        rounds: timing rounds, after a warm-up round
    """

    config: str | None = option(None, metavar="FILE")
    layers: Count | None = option(None, metavar="N")
    length: Count | None = option(None, metavar="N")
    batch: Count = option(1, metavar="B")
    encodings: str | None = option(None, metavar="A,B", completions=tuple(ENCODINGS))
    checkpointing: tuple[Literal["selective", "full"], ...] = ()
    llama: bool = False
    rounds: Count = option(5, metavar="N")


def run(options: Options) -> None:
    """Print parameters, FLOPs, times and memory of each encoding, as they are measured."""
    # Report errors before importing torch.
    configured = None
    length = options.length or COST_LENGTH
    if options.config:
        config = load_config(options.config)
        configured = config.model
        length = options.length or config.data.sequence_length
    encodings = list(ENCODINGS)
    if options.encodings is not None:
        encodings = parse_encodings(options.encodings)
    from megatape.lab.benchmark.efficiency import report
    from megatape.lab.benchmark.figures.timing import default_device
    from megatape.lab.benchmark.models.shapes import ModelShape, configured_model

    model = configured_model(configured, options.layers, length)
    shape = ModelShape(model, options.batch, length)
    device = default_device()
    show = ParagraphPrinter().print
    report(shape, encodings, options.rounds, device, show, options.checkpointing, options.llama)

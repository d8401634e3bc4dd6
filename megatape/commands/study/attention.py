"""Plots dot products of the position tensors, and attention."""

from pathlib import Path

from megatape.commands.cli.output import print_paragraphs
from megatape.commands.options.study_options import ExaminedModelOptions
from megatape.utils.values.options import option

EXAMPLE = "megatape study attention runs/tape/checkpoints/step-00000500 --output patterns.png"


class Options(ExaminedModelOptions):
    """Models to draw, and the plot.

    Attributes:
        output: PNG file to write
    """

    output: Path = option(metavar="FILE.png")


def run(options: Options) -> None:
    """Draw the plot."""
    models = options.load()
    from megatape.lab.study.attention.patterns import draw

    print_paragraphs(draw(models, options.output))

"""Measures how added tokens and shifted position ids change attention."""

from megatape.commands.cli.output import ParagraphPrinter
from megatape.commands.options.study_options import ExaminedModelOptions
from megatape.utils.values.options import option

EXAMPLE = "megatape study shift runs/rope/checkpoints/step-00000500 runs/tape/checkpoints/step-00000500"


class Options(ExaminedModelOptions):
    """Models to compare with themselves, shifted.

    Attributes:
        shift: number of added tokens, or first position id
    """

    shift: int = option(3, metavar="S")


def run(options: Options) -> None:
    """Measure the changes and print the tables."""
    models = options.load()
    from megatape.lab.study.attention.shift import report

    report(models, options.shift, ParagraphPrinter().print)

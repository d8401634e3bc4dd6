"""Measures how long training waits for saves, and restoring on other ranks."""

from megatape.commands.cli.output import ParagraphPrinter
from megatape.utils.values.options import CommandOptions, Count, option

EXAMPLE = "megatape benchmark saves --layers 2"


class Options(CommandOptions):
    """Options of the measurement.

    Attributes:
        layers: layers of the measured model; the default has 3 GB of weights and optimizer state, and
            needs 16 GB of memory
    """

    layers: Count = option(22, metavar="N")


def run(options: Options) -> None:
    """Save and restore a model without training it, and print the times."""
    from megatape.lab.benchmark.ranks.saves import report

    report(ParagraphPrinter().print, options.layers)

"""Compares the speed of reading samples with webdataset's."""

from pathlib import Path

from megatape.commands.cli.output import print_paragraphs
from megatape.utils.values.options import CommandOptions, option

EXAMPLE = "megatape benchmark loader --data data/c4"


class Options(CommandOptions):
    """The data to read.

    Attributes:
        data: data directory, with at least a million tokens
        length: tokens per sample
    """

    data: Path = option(metavar="FOLDER")
    length: int = option(2048, metavar="N")


def run(options: Options) -> None:
    """Measure the speed of reading samples with our loader and with webdataset, and print a table."""
    from megatape.lab.benchmark.data.loader import report

    print_paragraphs(report(options.data, options.length))

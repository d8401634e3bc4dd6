"""megatape benchmark loader: `megatape benchmark loader --data data/c4`."""

from pathlib import Path

from megatape.utils.options import CommandOptions, Paragraphs, option


class Options(CommandOptions):
    """The data to read.

    Attributes:
        data: data directory, with at least a million tokens
        length: tokens of a sample
    """

    data: Path = option(metavar="FOLDER")
    length: int = option(2048, metavar="N")


def run(options: Options) -> Paragraphs:
    """Measure."""
    from megatape.lab.benchmark.loader import report

    return report(options.data, options.length)

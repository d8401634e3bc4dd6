"""Compares the speed of finding duplicates with sorting their hashes."""

from megatape.commands.cli.output import print_paragraphs
from megatape.utils.values.options import CommandOptions, Count, option

EXAMPLE = "megatape benchmark duplicates --hashes 100000000 --workers 2"


class Options(CommandOptions):
    """Forged hashes, which take 20 bytes each in a temporary folder.

    Attributes:
        hashes: number of hashes
        workers: number of processes
        comparison_bytes: memory of each process for comparing hashes
    """

    hashes: Count = option(100_000_000, metavar="N")
    workers: Count = option(2, metavar="N")
    comparison_bytes: Count = option(2**30, metavar="N")


def run(options: Options) -> None:
    """Find the duplicates among forged hashes, sort the same hashes, and print both times and their ratio."""
    from megatape.lab.benchmark.data.duplicates import report

    print_paragraphs(report(options.hashes, options.workers, options.comparison_bytes))

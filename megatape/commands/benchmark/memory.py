"""megatape benchmark memory: resident memory per rank. Takes no arguments."""

from megatape.commands.cli.output import print_paragraphs
from megatape.utils.options import CommandOptions as Options


def run(options: Options) -> None:
    """Measure."""
    from megatape.lab.benchmark.memory import report

    print_paragraphs(report())

"""megatape benchmark memory: resident memory per rank. Takes no arguments."""

from megatape.utils.options import CommandOptions as Options
from megatape.utils.paragraphs import print_paragraphs


def run(options: Options) -> None:
    """Measure."""
    from megatape.lab.benchmark.memory import report

    print_paragraphs(report())

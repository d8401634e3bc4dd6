"""megatape benchmark memory: resident memory per rank. Takes no arguments."""

from megatape.utils.options import CommandOptions as Options
from megatape.utils.options import Paragraphs


def run(options: Options) -> Paragraphs:
    """Measure."""
    from megatape.lab.benchmark.memory import report

    return report()

"""Measures host memory per rank, by ZeRO stage and tensor-parallel ranks."""

from megatape.commands.cli.output import print_paragraphs
from megatape.utils.options import CommandOptions as Options

EXAMPLE = "megatape benchmark memory"


def run(options: Options) -> None:
    """Measure."""
    from megatape.lab.benchmark.memory import report

    print_paragraphs(report())

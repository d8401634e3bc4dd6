"""Measures host memory per rank, by ZeRO stage and tensor-parallel ranks."""

from megatape.commands.cli.output import ParagraphPrinter
from megatape.utils.values.options import CommandOptions as Options

EXAMPLE = "megatape benchmark memory"


def run(options: Options) -> None:
    """Measure the memory of training processes, and print it beside the planned memory."""
    from megatape.lab.benchmark.ranks.memory import report

    report(ParagraphPrinter().print)

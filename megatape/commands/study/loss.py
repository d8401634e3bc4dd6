"""megatape study loss: peak memory of the loss. Takes no arguments."""

from megatape.commands.study import show
from megatape.options import CommandOptions


class Options(CommandOptions):
    """There are none."""


def run(options: Options) -> int:
    """Measure and print."""
    from megatape.study.loss_memory import report

    return show(report())

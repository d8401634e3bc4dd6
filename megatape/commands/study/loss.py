"""megatape study loss"""

import argparse

from megatape.commands.study import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It takes none."""


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    from megatape.study.loss_memory import report

    return show(report())

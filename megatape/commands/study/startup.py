"""megatape study startup: time to the first step. Takes no arguments."""

import argparse

from megatape.commands.study import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    from megatape.study.startup import report

    return show(report())

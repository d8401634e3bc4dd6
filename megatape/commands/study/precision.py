"""megatape study precision: megatape study precision --layers 12"""

import argparse

from megatape.commands.study import show
from megatape.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--layers", type=int, default=12, metavar="N", help="number of layers (default %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    from megatape.study.precision import report

    if args.layers < 1:
        raise UserError(f"--layers is {args.layers}: give at least 1")
    return show(report(args.layers))

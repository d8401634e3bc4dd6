"""megatape study failures: megatape study failures runs/suite/flip_flop/{rope,tape}/rate-0.003/seed-1 --split sparse"""

import argparse
from pathlib import Path

from megatape.commands import options
from megatape.commands.study import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run of a suite, such as OUT/flip_flop/rope/rate-0.003/seed-1"
    )
    parser.add_argument("--split", required=True, help="split of the task, such as sparse (docs/suite_tasks.md)")
    parser.add_argument(
        "--samples", type=options.positive, default=500, metavar="N", help="samples of the split (default %(default)s)"
    )
    options.add_import(parser)


def run(args: argparse.Namespace) -> int:
    """Print the tables."""
    from megatape.study.suite.failures import failures

    return show(failures(args.runs, args.split, args.samples))

"""megatape ledger: megatape ledger runs/tape_155m"""

import argparse
from pathlib import Path

from megatape.commands.options import add_import


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("directory", type=Path, metavar="RUN", help="folder of a run, run.directory of its configuration")
    add_import(parser)


def run(args: argparse.Namespace) -> int:
    """Print the proof."""
    from megatape.training.ledger import prove

    for line in prove(args.directory):
        print(line)
    return 0

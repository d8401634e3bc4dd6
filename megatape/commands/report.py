"""megatape report: megatape report runs/tape_155m runs/rope_155m --output report"""

import argparse
import sys
from pathlib import Path

from megatape.commands.options import add_import


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, run.directory of its configuration")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="new folder for index.html")
    parser.add_argument(
        "--evaluations",
        nargs="+",
        default=[],
        type=Path,
        metavar="DIR",
        help="folders with results of `megatape evaluate`, beside those below the runs",
    )
    add_import(parser)


def run(args: argparse.Namespace) -> int:
    """Write the page."""
    from megatape.report.page import write_report

    page, notes = write_report(args.runs, args.evaluations, args.output)
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)
    print(f"wrote {page}")
    return 0

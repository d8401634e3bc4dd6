"""megatape benchmark roofline: megatape benchmark roofline --gpu h200 --measured measured/results.jsonl"""

import argparse
from pathlib import Path

from megatape.commands.study import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from megatape.plan.gpus import GPUS

    parser.add_argument("--gpu", default="h200", metavar="NAME|FILE", help=f"{', '.join(GPUS)}, or a JSON file (default h200)")
    parser.add_argument(
        "--measured",
        type=Path,
        metavar="FILE",
        help="results.jsonl of megatape benchmark gpu: show its steps beside the estimates",
    )
    parser.add_argument("--tiny", action="store_true", help="sizes that show only whether everything runs")


def run(args: argparse.Namespace) -> int:
    """Estimate and print."""
    from megatape.benchmark.roofline import report

    return show(report(args.gpu, args.measured, args.tiny))

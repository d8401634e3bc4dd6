"""megatape benchmark gpu: megatape benchmark gpu --out measured --budget 570"""

import argparse
from pathlib import Path

from megatape.commands import options
from megatape.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for results.jsonl, table.md and logs")
    parser.add_argument(
        "--budget",
        type=options.positive,
        metavar="SECONDS",
        help="end after so long: leave out parts that do not fit (default: all)",
    )
    parser.add_argument(
        "--done",
        type=Path,
        metavar="FILE",
        help="results.jsonl of an earlier benchmark: measure only what it lacks",
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="device to measure (default %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="sizes that show only whether everything runs")


def run(args: argparse.Namespace) -> int:
    """Measure, print the progress."""
    if args.device == "cpu" and not args.tiny:
        raise UserError("--device cpu takes hours at these sizes: add --tiny, or see megatape study")
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():
        raise UserError("PyTorch finds no CUDA device: run it where there is one, or try it by --device cpu --tiny")
    from megatape.benchmark.parts import PARTS
    from megatape.benchmark.runner import TABLE, benchmark

    for line in benchmark(PARTS, args.out, args.done, args.budget, args.device, args.tiny):
        print(line, flush=True)
    print(f"table: {args.out / TABLE}")
    return 0

"""megatape study compare: megatape study compare --config configs/tape_tiny.json --encodings rope,tape --out runs/compared"""

import argparse
from pathlib import Path

from megatape.commands import options
from megatape.commands.study import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_config(parser)
    parser.add_argument(
        "--encodings", required=True, metavar="A,B", help="such as rope,tape,tape+yarn,tape:position_size=12 (docs/studies.md)"
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="S", help="runs of each (default 3)")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="of all runs, the table and the picture")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="runs at a time (default 1)")
    parser.add_argument(
        "--launcher", metavar="COMMAND", help='what starts a Python script, such as "deepspeed --num_accelerators 8"'
    )


def run(args: argparse.Namespace) -> int:
    """Train, measure, print the table."""
    options.read_config(args)  # a fault is found without importing torch
    from megatape.study.compare import compare

    try:
        return show(compare(args.config, args.set, args.encodings, args.seeds, args.out, args.jobs, args.launcher, args.typed))
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command goes on") from None

"""megatape study compare: megatape study compare --config configs/tape_tiny.json --encodings rope,tape --out runs/compared"""

import argparse

from megatape.commands import options
from megatape.commands.study import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_config(parser)
    parser.add_argument(
        "--encodings",
        required=True,
        metavar="A,B",
        help="encodings to compare, such as rope,tape,tape+yarn,tape:position_size=12 (docs/studies.md)",
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="S", help="runs per encoding (default %(default)s)")
    options.add_runs(parser)


def run(args: argparse.Namespace) -> int:
    """Train and evaluate the models, print the table."""
    options.read_config(args)  # report errors before importing torch
    from megatape.study.compare import compare

    try:
        return show(compare(args.config, args.set, args.encodings, args.seeds, args.out, args.jobs, args.launcher, args.typed))
    except KeyboardInterrupt:
        raise KeyboardInterrupt("run the same command again to continue") from None

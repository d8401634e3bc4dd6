"""megatape study shift: megatape study shift runs/rope/checkpoints/step-00000500 runs/tape/checkpoints/step-00000500

With random weights: megatape study shift --random --config configs/tape_tiny.json --encodings rope,tape
"""

import argparse

from megatape.commands import options
from megatape.commands.study import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_models(parser)
    parser.add_argument(
        "--shift", type=int, default=3, metavar="S", help="number of added tokens, or first position id (default %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    options.check_config(args)
    from megatape.study.shift import report
    from megatape.study.subjects import load_subjects

    subjects = load_subjects(args.checkpoints, args.random, args.config, args.encodings, args.data, args.samples, args.length)
    return show(report(subjects, args.shift))

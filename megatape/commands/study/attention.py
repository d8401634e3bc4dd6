"""megatape study attention: megatape study attention runs/tape/checkpoints/step-00000500 --out patterns.png"""

import argparse
from pathlib import Path

from megatape.commands import options
from megatape.commands.study import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_models(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.png", help="PNG file to write")


def run(args: argparse.Namespace) -> int:
    """Draw the plot."""
    options.check_config(args)
    from megatape.study.patterns import draw
    from megatape.study.subjects import load_subjects

    subjects = load_subjects(args.checkpoints, args.random, args.config, args.encodings, args.data, args.samples, args.length)
    return show(draw(subjects, args.out))

"""megatape evaluate addition: megatape evaluate addition exported --data runs/data/addition_5 --output evaluated"""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", type=Path, metavar="MODEL_DIR", help="checkpoint, or folder that `megatape export` wrote")
    parser.add_argument("--data", type=Path, required=True, help="folder that `megatape prepare addition` wrote")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="folder to write; it must not exist")
    parser.add_argument("--max-digits", type=int, metavar="M", help="size of the grid (default: twice the trained digits)")


def run(args: argparse.Namespace) -> int:
    """Evaluate, write the folder, print a summary."""
    from transformers.utils.logging import disable_progress_bar

    from megatape.tasks.report import report_addition

    disable_progress_bar()
    print(report_addition(args.model, args.data, args.output, args.max_digits))
    return 0

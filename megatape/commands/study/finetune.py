"""megatape study finetune: megatape study finetune --base Llama-2-7b-hf --data runs/data/books --out runs/extended"""

import argparse
from pathlib import Path

from megatape.commands import options
from megatape.commands.study import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--base", type=Path, required=True, metavar="FOLDER", help="model of transformers, or what megatape import made of one"
    )
    parser.add_argument(
        "--data", type=Path, required=True, metavar="FOLDER", help="data directory, prepared with the base's tokenizer"
    )
    parser.add_argument(
        "--methods",
        default="base,lora,longlora,theta,tape,full",
        metavar="A,B",
        help="methods to compare with the base (default %(default)s; docs/studies.md)",
    )
    parser.add_argument(
        "--length", type=options.positive, metavar="N", help="tokens per sample (default: twice those of the base)"
    )
    parser.add_argument(
        "--steps", type=options.positive, default=1000, metavar="S", help="steps of each method (default %(default)s)"
    )
    options.add_import(parser)
    options.add_overrides(parser)
    options.add_runs(parser)


def run(args: argparse.Namespace) -> int:
    """Train and evaluate the models, print the table."""
    from transformers.utils.logging import disable_progress_bar

    from megatape.study.finetune import finetune

    disable_progress_bar()
    study = finetune(
        args.base,
        args.data,
        args.methods,
        args.length,
        args.steps,
        args.set,
        args.out,
        args.jobs,
        args.launcher,
        args.typed,
    )
    try:
        return show(study)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("run the same command again to continue") from None

"""megatape import: megatape import Llama-3.2-1B runs/llama --encoding tape"""  # noqa: N999 (the command's name)

import argparse
from pathlib import Path

from megatape.commands.options import positive
from megatape.registry import ENCODINGS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="model of transformers: config.json and safetensors files")
    parser.add_argument(
        "out", type=Path, metavar="OUT", help="folder to write; must not exist. The weights stay where they are"
    )
    parser.add_argument(
        "--encoding",
        default="rope",
        choices=list(ENCODINGS),
        metavar="E",
        help="encoding to train it with (default %(default)s)",
    )
    parser.add_argument(
        "--length", type=positive, metavar="N", help="tokens per sample (default: those the model is made for, at most 4096)"
    )


def run(args: argparse.Namespace) -> int:
    """Check the model, compare it with transformers' own, write the folder, and print what to type next."""
    from transformers.utils.logging import disable_progress_bar

    from megatape.hf.adopt.importing import import_model

    disable_progress_bar()
    record = import_model(args.folder, args.out, args.encoding, args.length)
    print(f"{record.family}: logits differ from transformers' own by {record.difference:.1e} of the largest")
    print(f"wrote {args.out}, which refers to the weights in {record.source}; now, for example:")
    if {"tokenizer.json", "tokenizer.model"} & set(record.tokenizer):
        print(f"  megatape prepare corpus --source text --input TEXTS --output DATA --tokenizer {args.folder}")
    print(f"  deepspeed launch/pretrain.py --config {args.out}/config.json --set data.path=DATA --set training.steps=1000")
    return 0

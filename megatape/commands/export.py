"""megatape export: megatape export runs/tape_tiny/checkpoints/step-00000100 exported"""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="folder such as checkpoints/step-00000100")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write; must not exist")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="precision of the stored weights (default: that of the run)"
    )


def run(args: argparse.Namespace) -> int:
    """Verify the checkpoint, then export it."""
    from megatape.checkpoint.reader import verified_checkpoint
    from megatape.hf.export import export

    checkpoint = verified_checkpoint(args.checkpoint)
    if args.dtype:
        section = checkpoint.config.export.model_copy(update={"dtype": args.dtype})
        checkpoint.config = checkpoint.config.model_copy(update={"export": section})
    export(checkpoint, args.out)
    print(f"exported step {checkpoint.step}, {checkpoint.tokens:,} tokens, to {args.out}")
    return 0

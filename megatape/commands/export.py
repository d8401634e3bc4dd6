"""megatape export: megatape export runs/tape_tiny/checkpoints/step-00000100 exported"""

import argparse
from pathlib import Path

from megatape.commands.options import add_base, add_import
from megatape.config.export import DTYPES
from megatape.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT", help="folder such as checkpoints/step-00000100, or an exported adapter"
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write; must not exist")
    parser.add_argument("--dtype", choices=DTYPES, help="precision of the stored weights (default: that of the run)")
    add_base(parser)
    add_import(parser)
    lora = parser.add_mutually_exclusive_group()
    lora.add_argument("--adapter", action="store_true", help="of a run with LoRA: only what was trained, in peft's format")
    lora.add_argument(
        "--without-adapter", action="store_true", help="of a run with LoRA: the base that peft adds the adapter to"
    )


def run(args: argparse.Namespace) -> int:
    """Verify the checkpoint, then export it; or merge an adapter into its base."""
    from megatape.checkpoint.reader import verified_checkpoint
    from megatape.hf.export import export
    from megatape.hf.lora import SETTINGS, export_adapter
    from megatape.hf.merge import merge_adapter

    if (args.checkpoint / SETTINGS).is_file():
        if args.base is None or args.dtype or args.adapter or args.without_adapter:
            raise UserError(f"{args.checkpoint} is an adapter: give --base DIR, the model to merge it into, and nothing else")
        merge_adapter(args.checkpoint, args.base, args.out)
        print(f"merged {args.checkpoint} into {args.base}, as {args.out}")
        return 0
    checkpoint = verified_checkpoint(args.checkpoint, args.base)
    if args.dtype:
        section = checkpoint.config.export.model_copy(update={"dtype": args.dtype})
        checkpoint.config = checkpoint.config.model_copy(update={"export": section})
    if args.adapter:
        export_adapter(checkpoint, args.out)
    else:
        export(checkpoint, args.out, merge=not args.without_adapter)
    print(f"exported step {checkpoint.step}, {checkpoint.tokens:,} tokens, to {args.out}")
    return 0

"""megatape generate: megatape generate exported --prompt "Once upon a time" """

import argparse
from pathlib import Path

from megatape.commands.options import add_base, add_trust


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", type=Path, metavar="MODEL_DIR", help="exported model or checkpoint")
    parser.add_argument("--prompt", required=True, help="text to continue")
    parser.add_argument(
        "--max-new-tokens", type=int, default=64, metavar="N", help="maximum number of new tokens (default %(default)s)"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="sampling temperature; 0 is greedy (default 0)"
    )
    add_base(parser)
    add_trust(parser)
    parser.add_argument("--seed", type=int, default=0, help="seed of sampling (default %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Print the prompt and its continuation."""
    from transformers.utils.logging import disable_progress_bar

    from megatape.hf.generation import generate_text

    disable_progress_bar()
    wanted = (args.prompt, args.max_new_tokens, args.temperature, args.seed)
    print(generate_text(args.folder, *wanted, trust_remote_code=args.trust_remote_code, base=args.base))
    return 0

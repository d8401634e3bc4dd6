"""Print a prompt and its continuation by an exported model (docs/export.md).

python launch/generate.py exported --prompt "Once upon a time"
"""

import argparse
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="MODEL_DIR", help="folder that launch/export_hf.py wrote; its code is run")
    parser.add_argument("--prompt", required=True, help="text to continue")
    parser.add_argument(
        "--max-new-tokens", type=int, default=64, metavar="N", help="tokens to add at most (default %(default)s)"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0 takes the likeliest token, above 0 samples (default 0)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sampling (default %(default)s)")
    args = parser.parse_args()
    # Importing torch and transformers takes seconds: not for --help and mistyped arguments.
    from safetensors import SafetensorError
    from transformers.utils.logging import disable_progress_bar

    from megatape.hf.generation import generate_text

    disable_progress_bar()
    try:
        print(generate_text(args.folder, args.prompt, args.max_new_tokens, args.temperature, args.seed))
    except (ValueError, OSError, SafetensorError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

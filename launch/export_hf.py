"""Export a checkpoint to a folder that transformers loads (docs/export.md).

python launch/export_hf.py runs/tape_tiny/checkpoints/step-00000100 exported
"""

import argparse
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="folder such as checkpoints/step-00000100")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write; it must not exist")
    args = parser.parse_args()
    # Importing torch and transformers takes seconds: not for --help and mistyped arguments.
    from megatape.checkpoint.manifest import check_hashes
    from megatape.checkpoint.reader import CheckpointReader
    from megatape.hf.export import export

    try:
        checkpoint = CheckpointReader(args.checkpoint)
        check_hashes(checkpoint.directory, checkpoint.manifest)
        export(checkpoint, args.out)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"exported step {checkpoint.step}, {checkpoint.tokens:,} tokens, to {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measure a trained model (docs/evaluation.md).

python launch/evaluate.py addition runs/tape_addition_5/checkpoints/step-00001200 --data runs/data/addition_5 --output evaluated
"""

import argparse
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="task", required=True)
    addition = commands.add_parser("addition", help="exact match over the grid of operand lengths: addition.json, addition.png")
    addition.add_argument("model", type=Path, metavar="MODEL_DIR", help="checkpoint, or folder that launch/export_hf.py wrote")
    addition.add_argument("--data", type=Path, required=True, help="folder that data_prep/prepare_addition.py wrote")
    addition.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="folder to write; it must not exist")
    addition.add_argument("--max-digits", type=int, metavar="M", help="size of the grid (default: twice the trained digits)")
    args = parser.parse_args()
    # Importing torch and transformers takes seconds: not for --help and mistyped arguments.
    from safetensors import SafetensorError
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        from megatape.tasks.report import report_addition

        print(report_addition(args.model, args.data, args.output, args.max_digits))
    except (ValueError, OSError, SafetensorError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    except ImportError as error:
        print(f"error: {error}; pictures need matplotlib: pip install -c constraints.txt -e .[plots]", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

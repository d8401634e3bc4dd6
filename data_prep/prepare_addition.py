"""Prepares addition problems: python data_prep/prepare_addition.py --digits 5 --output runs/data/addition"""

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from megatape.data.addition import AdditionTask, longest_document, prepare_addition


def main() -> int:
    parser = argparse.ArgumentParser(description="Write reversed-digit addition problems as shards for training.")
    parser.add_argument("--digits", type=int, required=True, help="D: operands have 1 to D digits")
    parser.add_argument(
        "--per-cell",
        type=int,
        default=10_000,
        help="training problems of each of the D x D combinations of lengths (default %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the problems and of what is held out (default %(default)s)")
    parser.add_argument("--output", required=True, type=Path, help="data directory to write")
    args = parser.parse_args()
    try:
        task = AdditionTask(args.digits, args.per_cell, args.seed)
        with tqdm(desc="tokens", unit_scale=True, delay=0.5) as bar:
            index = prepare_addition(task, args.output, lambda tokens: bar.update(tokens - bar.n) and None)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    for name, split in index.splits.items():
        print(f"{name}: {split.documents:,} problems, {split.tokens:,} tokens, {len(split.shards)} shards")
    longest = longest_document(args.digits)
    print(f"the longest problem has {longest} tokens: data.sequence_length must be at least {longest - 1}")
    print(f"wrote {args.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

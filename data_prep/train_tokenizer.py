"""Trains a tokenizer: python data_prep/train_tokenizer.py --source python --output tok.model --vocab-size 4096"""

import argparse
import sys
from pathlib import Path

from megatape.data.corpus import KINDS, CorpusCounts, Source, read_documents
from megatape.data.tokenizer import MAX_TRAINING_BYTES, Tokenizer, train_tokenizer


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a SentencePiece BPE tokenizer with byte fallback.")
    parser.add_argument("--source", required=True, choices=KINDS, help="kind of source, see docs/data.md")
    parser.add_argument("--input", nargs="+", default=[], help="files or directories; for hub a data set name")
    parser.add_argument("--subset", help="configuration of a hub data set")
    parser.add_argument("--output", required=True, type=Path, help="model file to write")
    parser.add_argument("--vocab-size", type=int, default=4096, help="tokens (default %(default)s)")
    parser.add_argument(
        "--max-training-bytes",
        type=int,
        default=MAX_TRAINING_BYTES,
        help="train on the first so many bytes of text (default %(default)s)",
    )
    args = parser.parse_args()
    try:
        if args.output.exists():
            raise FileExistsError(f"--output {args.output} exists: remove it or choose another name")
        if not args.output.parent.is_dir():
            raise FileNotFoundError(
                f"--output {args.output}: there is no folder {args.output.parent}: make it or choose another"
            )
        if args.max_training_bytes < 1:
            raise ValueError(f"--max-training-bytes is {args.max_training_bytes}: give at least 1")
        counts = CorpusCounts()
        texts = read_documents(Source(args.source, tuple(args.input), args.subset), counts)
        model = train_tokenizer(texts, args.vocab_size, args.max_training_bytes)
        args.output.write_bytes(model)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    tokenizer = Tokenizer(model)
    print(f"trained {tokenizer.vocab_size} tokens on the first {min(counts.text_bytes, args.max_training_bytes):,} bytes")
    print(f"wrote {args.output}, sha256 {tokenizer.sha256}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

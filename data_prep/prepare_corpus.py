"""Prepares a data directory: python data_prep/prepare_corpus.py --source c4 --input DIR --output data/c4"""

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from megatape.data.corpus import KINDS, CorpusCounts, Source
from megatape.data.prepare import prepare
from megatape.data.tokenizer import Tokenizer


def main() -> int:
    parser = argparse.ArgumentParser(description="Tokenize a corpus into shards for training.")
    parser.add_argument("--source", required=True, choices=KINDS, help="kind of source, see docs/data.md")
    parser.add_argument("--input", nargs="+", default=[], help="files or directories; for hub a data set name")
    parser.add_argument("--subset", help="configuration of a hub data set")
    parser.add_argument("--output", required=True, type=Path, help="data directory to write")
    vocabulary = parser.add_mutually_exclusive_group()
    vocabulary.add_argument("--tokenizer", help="model file; without it one is trained on the source")
    vocabulary.add_argument("--vocab-size", type=int, default=4096, help="tokens to train (default %(default)s)")
    parser.add_argument("--validation-share", type=float, default=0.02, help="of the documents (default %(default)s)")
    parser.add_argument("--max-documents", type=int, help="stop after so many documents")
    args = parser.parse_args()
    try:
        source = Source(args.source, tuple(args.input), args.subset, args.max_documents)
        tokenizer = Tokenizer.load(args.tokenizer) if args.tokenizer else None
        with tqdm(desc="text", unit="B", unit_scale=True, delay=0.5) as bar:

            def show(counts: CorpusCounts, num_tokens: int) -> None:
                bar.set_postfix_str(f"{counts.documents:,} documents, {num_tokens:,} tokens", refresh=False)
                bar.update(counts.text_bytes - bar.n)

            index, counts = prepare(
                source,
                args.output,
                tokenizer=tokenizer,
                vocab_size=args.vocab_size,
                validation_share=args.validation_share,
                progress=show,
            )
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    for name, split in index.splits.items():
        print(f"{name}: {split.documents:,} documents, {split.tokens:,} tokens, {len(split.shards)} shards")
    if counts.empty:
        print(f"skipped {counts.empty:,} empty documents")
    if counts.bad:
        print(f"skipped {counts.bad:,} bad records, the first of them:", *counts.bad_examples, sep="\n  ")
    print(f"wrote {args.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

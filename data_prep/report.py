"""Describes a data directory: python data_prep/report.py data/c4 [--verify]"""

import argparse
import sys
from pathlib import Path

from megatape.data.dataset import TokenDataset
from megatape.data.index import Index, load_index
from megatape.data.reader import SplitReader
from megatape.data.tokenizer import Tokenizer

SAMPLE_TOKENS = 128


def main() -> int:
    parser = argparse.ArgumentParser(description="Print what a data directory holds.")
    parser.add_argument("directory", type=Path, help="data directory")
    parser.add_argument("--verify", action="store_true", help="check the hash of every member of every shard")
    args = parser.parse_args()
    try:
        index = load_index(args.directory)
        tokenizer = Tokenizer.load(args.directory / index.tokenizer.file, index.tokenizer.sha256)
        print_index(index)
        print_sample(args.directory, index, tokenizer)
        if args.verify:
            verify(args.directory, index)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def print_index(index: Index) -> None:
    print("source:    ", ", ".join(f"{name} {value}" for name, value in index.source.items()))
    print(f"tokenizer:  {index.tokenizer.file}, {index.tokenizer.vocab_size:,} tokens, sha256 {index.tokenizer.sha256}")
    print(f"token ids:  {index.dtype}; validation share {index.validation_share}")
    for name, split in index.splits.items():
        members = sum(len(shard.members) for shard in split.shards)
        size = sum(shard.bytes for shard in split.shards)
        print(f"{name}:")
        print(f"  {split.documents:,} documents, {split.text_bytes:,} bytes of text, {split.tokens:,} tokens")
        print(f"  {split.text_bytes / split.tokens:.3f} bytes a token, unigram entropy {split.unigram_entropy:.4f} nats")
        print(f"  {len(split.shards)} shards, {members} members, {size:,} bytes")


def print_sample(directory: Path, index: Index, tokenizer: Tokenizer) -> None:
    length = min(SAMPLE_TOKENS, index.splits["train"].tokens - 1)
    ids = TokenDataset(directory, "train", length).sample(0)
    print(f"first {ids.size} tokens of train:", tokenizer.decode(ids), sep="\n")


def verify(directory: Path, index: Index) -> None:
    for name in index.splits:
        reader = SplitReader(directory, index, name)
        for number in range(len(reader)):
            reader.member(number)
        print(f"{name}: {len(reader)} members verified")


if __name__ == "__main__":
    sys.exit(main())

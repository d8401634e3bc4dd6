"""megatape prepare corpus: megatape prepare corpus --source c4 --input FOLDER --output runs/data/c4"""

import argparse
from pathlib import Path

from megatape.commands import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_source(parser)
    options.add_new_data(parser)
    vocabulary = parser.add_mutually_exclusive_group()
    vocabulary.add_argument(
        "--tokenizer",
        type=Path,
        metavar="PATH",
        help="SentencePiece model, tokenizer.json or a folder of transformers (default: train a tokenizer on the source)",
    )
    vocabulary.add_argument(
        "--vocab-size", type=int, default=4096, metavar="N", help="vocabulary size to train (default %(default)s)"
    )
    options.add_validation_share(parser, "documents")
    parser.add_argument("--max-documents", type=int, metavar="N", help="stop after N documents")


def run(args: argparse.Namespace) -> int:
    """Write the data directory."""
    from tqdm import tqdm

    from megatape.data.corpus import CorpusCounts, Source
    from megatape.data.prepare import prepare

    source = Source(args.source, tuple(args.input), args.subset, args.max_documents, args.max_record_bytes)
    tokenizer = options.read_tokenizer(args.tokenizer) if args.tokenizer else None
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
    for name, split in index.splits.items():
        print(f"{name}: {split.documents:,} documents, {split.tokens:,} tokens, {len(split.shards)} shards")
    if counts.empty:
        print(f"skipped {counts.empty:,} empty documents")
    options.report_skipped(counts, args.max_record_bytes)
    print(f"wrote {args.output}")
    return 0

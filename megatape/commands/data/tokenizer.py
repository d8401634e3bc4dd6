"""megatape data tokenizer: megatape data tokenizer --source python --output tokenizer.model --vocab-size 4096"""

import argparse
from pathlib import Path

from megatape.commands import options
from megatape.errors import ExistingPath, MissingPath, UserError, path_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_source(parser)
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="model file to write")
    parser.add_argument("--vocab-size", type=int, default=4096, metavar="N", help="vocabulary size (default %(default)s)")
    parser.add_argument(
        "--max-training-bytes", type=int, metavar="N", help="train on the first N bytes of text (default 20,000,000)"
    )


@path_errors()
def run(args: argparse.Namespace) -> int:
    """Train the tokenizer and write its file."""
    from megatape.data.sources.reading import read_documents
    from megatape.data.sources.source import CorpusCounts
    from megatape.data.tokenizer_sentencepiece import MAX_TRAINING_BYTES, SentencePieceTokenizer, train_tokenizer

    if args.output.exists():
        raise ExistingPath(f"--output {args.output} exists: remove it or choose another name")
    if not args.output.parent.is_dir():
        raise MissingPath(f"--output {args.output}: no folder {args.output.parent}: create it or choose another")
    limit = MAX_TRAINING_BYTES if args.max_training_bytes is None else args.max_training_bytes
    if limit < 1:
        raise UserError(f"--max-training-bytes is {limit}: give at least 1")
    counts = CorpusCounts()
    texts = (document.text for document in read_documents(options.read_source(args), counts))
    model = train_tokenizer(texts, args.vocab_size, limit)
    args.output.write_bytes(model)
    tokenizer = SentencePieceTokenizer(model)
    print(f"trained {tokenizer.vocab_size} tokens on the first {min(counts.text_bytes, limit):,} bytes of text")
    print(f"wrote {args.output}, sha256 {tokenizer.sha256}")
    return 0

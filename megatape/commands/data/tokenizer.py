"""Trains a SentencePiece BPE tokenizer with byte fallback."""

from pathlib import Path

from megatape.commands.options.data_options import SourceOptions
from megatape.errors import MissingPath, flag, path_errors
from megatape.utils.files.atomic import check_absent, write_atomically
from megatape.utils.values.options import Count, option

EXAMPLE = "megatape data tokenizer --source python --output tokenizer.model --vocab-size 4096"


class Options(SourceOptions):
    """A source of documents, and the tokenizer to train on it.

    Attributes:
        output: SentencePiece model file to write
        vocab_size: vocabulary size
        max_training_bytes: train on a sample of at most N bytes of text (default 20,000,000)
    """

    output: Path = option(metavar="FILE")
    vocab_size: Count = option(4096, metavar="N")
    max_training_bytes: int | None = option(None, ge=1, metavar="N")


@path_errors()
def run(options: Options) -> None:
    """Train the tokenizer, and write its file."""
    from megatape.data.prepare.planning.training_sample import sample_texts
    from megatape.data.tokenizers.sentencepiece import MAX_TRAINING_BYTES, SentencePieceTokenizer, train_tokenizer

    check_absent(options.output)
    if not options.output.parent.is_dir():
        raise MissingPath(f"{flag('output')} {options.output}: no folder {options.output.parent}: create it or choose another")
    limit = options.max_training_bytes or MAX_TRAINING_BYTES
    texts = sample_texts(options.read_source(), limit)
    model = train_tokenizer(texts, options.vocab_size, limit)
    write_atomically(options.output, model)
    tokenizer = SentencePieceTokenizer(model)
    num_bytes = sum(len(text.encode()) for text in texts)
    print(f"trained {tokenizer.vocab_size} tokens on {min(num_bytes, limit):,} bytes of text")
    print(f"wrote {options.output}, sha256 {tokenizer.sha256}")

"""Documents to shards: tokenize, split and write."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from megatape.data.shards.index import SPLITS, Index, TokenizerEntry, save_index, token_dtype
from megatape.data.shards.writer import SplitWriter
from megatape.data.sources.source import Document
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError

BATCH_CHARACTERS = 4_000_000  # tokenized at a time: enough to keep every thread busy


def split_of(text: str, validation_share: float) -> str:
    """The split of a document, by its text alone: duplicates land in the same split, in any order and from any source."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return "validation" if int.from_bytes(digest, "little") < validation_share * 2**64 else "train"


def write_documents(
    directory: Path,
    texts: Iterable[tuple[str, str]],
    tokenizer: Tokenizer,
    source: dict[str, Any],
    validation_share: float,
    progress: Callable[[int], None],
) -> Index:
    """Writes (split, text) pairs as shards, with tokenizer and index, into an existing directory; returns the index.

    source, validation_share: what the index records. Calls `progress` with the number of tokens so far.
    """
    entry = store_tokenizer(tokenizer, directory)
    writers = {split: SplitWriter(directory, split, tokenizer.vocab_size, tokenizer.eos_id) for split in SPLITS}
    num_tokens = 0
    for batch in batches((split, Document(text, "")) for split, text in texts):
        encoded = tokenizer.encode_documents([document.text for _, document in batch])
        for (split, document), ids in zip(batch, encoded, strict=True):
            writers[split].add(ids, len(document.text.encode()))
            num_tokens += ids.size
        progress(num_tokens)
    index = Index(
        tokenizer=entry,
        dtype=token_dtype(tokenizer.vocab_size).name,
        source=source,
        validation_share=validation_share,
        splits={split: writer.close() for split, writer in writers.items()},
    )
    save_index(index, directory)
    return index


def store_tokenizer(tokenizer: Tokenizer, directory: Path) -> TokenizerEntry:
    """Write the files of the tokenizer into a data directory; returns its part of the index."""
    for name, content in tokenizer.files.items():
        (directory / name).write_bytes(content)
    return tokenizer_entry(tokenizer)


def tokenizer_entry(tokenizer: Tokenizer) -> TokenizerEntry:
    """The tokenizer's part of the index."""
    return TokenizerEntry(
        file=tokenizer.file,
        sha256=tokenizer.sha256,
        vocab_size=tokenizer.vocab_size,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        companions={name: sha256 for name, sha256 in tokenizer.hashes.items() if name != tokenizer.file},
    )


def check_share(validation_share: float) -> None:
    """Raise UserError if the fraction leaves a split without documents."""
    if not 0 < validation_share < 1:
        raise UserError(f"validation_share is {validation_share}: give a share between 0 and 1, such as 0.02")


def batches(documents: Iterable[tuple[str, Document]]) -> Iterator[list[tuple[str, Document]]]:
    """Documents and their splits in lists of about BATCH_CHARACTERS."""
    batch: list[tuple[str, Document]] = []
    characters = 0
    for split, document in documents:
        batch.append((split, document))
        characters += len(document.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch

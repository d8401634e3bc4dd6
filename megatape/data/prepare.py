"""From a source of documents to a data directory: tokenize, split and write, all or nothing."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from megatape.data.corpus import CorpusCounts, Source, read_documents
from megatape.data.index import SPLITS, Index, TokenizerEntry, save_index, token_dtype
from megatape.data.tokenizer import Tokenizer
from megatape.data.tokenizer_sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.data.writer import SplitWriter
from megatape.files import new_folder

BATCH_CHARACTERS = 4_000_000  # tokenized at a time: enough to keep every thread busy


def prepare(
    source: Source,
    output: Path,
    *,
    tokenizer: Tokenizer | None,
    vocab_size: int,
    validation_share: float,
    progress: Callable[[CorpusCounts, int], None],
) -> tuple[Index, CorpusCounts]:
    """Writes the documents of `source` as the data directory `output`. Returns its index and the counts.

    Without a `tokenizer`, one of `vocab_size` tokens is trained on the source first. Calls `progress` with the counts and
    the number of tokens so far. Everything goes to a new folder beside `output`, which is renamed at the end and removed
    if anything fails. Raises ValueError, or FileExistsError if `output` exists.
    """
    check_share(validation_share)
    counts = CorpusCounts()
    with new_folder(output) as directory:
        if tokenizer is None:
            tokenizer = SentencePieceTokenizer(train_tokenizer(read_documents(source, CorpusCounts()), vocab_size))
        documents = ((split_of(text, validation_share), text) for text in read_documents(source, counts))
        index = write_documents(
            directory, documents, tokenizer, source.describe(), validation_share, lambda tokens: progress(counts, tokens)
        )
        for name, split in index.splits.items():
            if split.tokens == 0:
                raise ValueError(
                    f"the {name} split got none of the {counts.documents} documents at --validation-share "
                    f"{validation_share}: change the share or give more documents"
                )
    return index, counts


def split_of(text: str, validation_share: float) -> str:
    """The split of a document, by its text alone: duplicates land in the same split, in any order and from any source."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return "validation" if int.from_bytes(digest, "little") < validation_share * 2**64 else "train"


def write_documents(
    directory: Path,
    documents: Iterable[tuple[str, str]],
    tokenizer: Tokenizer,
    source: dict[str, Any],
    validation_share: float,
    progress: Callable[[int], None],
) -> Index:
    """Writes (split, text) pairs as shards, with tokenizer and index, into an existing directory; returns the index.

    source, validation_share: what the index records. Calls `progress` with the number of tokens so far."""
    entry = store_tokenizer(tokenizer, directory)
    writers = {split: SplitWriter(directory, split, tokenizer.vocab_size, tokenizer.eos_id) for split in SPLITS}
    num_tokens = 0
    for batch in _batches(documents):
        for (split, text), ids in zip(batch, tokenizer.encode_documents([text for _, text in batch]), strict=True):
            writers[split].add(ids, len(text.encode()))
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
    return TokenizerEntry(
        file=tokenizer.file,
        sha256=tokenizer.sha256,
        vocab_size=tokenizer.vocab_size,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        companions={name: sha256 for name, sha256 in tokenizer.hashes.items() if name != tokenizer.file},
    )


def check_share(validation_share: float) -> None:
    """Raise ValueError if the fraction leaves a split without documents."""
    if not 0 < validation_share < 1:
        raise ValueError(f"--validation-share is {validation_share}: give a share between 0 and 1, such as 0.02")


def _batches(documents: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    batch: list[tuple[str, str]] = []
    characters = 0
    for split, text in documents:
        batch.append((split, text))
        characters += len(text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch

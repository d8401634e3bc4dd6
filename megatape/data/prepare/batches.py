"""Reads and tokenizes the kept documents of a unit, in batches."""

from collections.abc import Iterable, Iterator

import numpy as np

from megatape.data.counts import CorpusCounts
from megatape.data.prepare.document_batch import DocumentBatch
from megatape.data.prepare.options import PreparationOptions
from megatape.data.shards.hashes import splits_of, table_hashes
from megatape.data.sources.document import Decide, Document, OnDecision
from megatape.data.sources.reading import read_unit
from megatape.data.sources.units import Unit
from megatape.data.tokenizers.fast import AnyTokenizer, FastTokenizer, IdsDiffer


def read_batches(
    options: PreparationOptions,
    unit: Unit,
    decide: Decide,
    tokenizer: AnyTokenizer,
    counts: CorpusCounts,
    on_decision: OnDecision,
) -> Iterator[DocumentBatch]:
    """Read and tokenize the kept documents of a unit.

    Args:
        options: What to prepare, and how.
        unit: Unit of the source.
        decide: Decides which documents to keep.
        tokenizer: Tokenizer, or a faster one with the same ids.
        counts: Counts to update.
        on_decision: Called for each document, including empty and dropped ones.

    Raises:
        IdsDiffer: A fast tokenizer gives other ids than its tokenizer. The message names the document's place.
    """
    documents = read_unit(options.source, unit, counts, decide, on_decision)
    for part in _parts(documents, options.batch_characters):
        hashes = table_hashes([document.digest for document in part])
        if unit.split:
            splits = [unit.split] * len(part)
        else:
            splits = splits_of(hashes, options.validation_share)
        yield DocumentBatch(
            splits=splits,
            text_bytes=[len(document.content) for document in part],
            hashes=hashes,
            places=[document.place for document in part],
            urls=[document.url for document in part],
            inputs=[document.input for document in part],
            scores=[document.scores for document in part],
            ids=_encode(tokenizer, part),
        )
    unit.check_unchanged()


def _encode(tokenizer: AnyTokenizer, documents: list[Document]) -> list[np.ndarray]:
    if not isinstance(tokenizer, FastTokenizer):
        return tokenizer.encode_documents([document.text for document in documents])
    try:
        return tokenizer.encode_documents([document.content for document in documents])
    except IdsDiffer as difference:
        place = documents[difference.number].place
        raise IdsDiffer(difference.number, f"{place}: {difference}") from difference


def _parts(documents: Iterable[Document], max_characters: int) -> Iterator[list[Document]]:
    """Yield the documents in lists of about this many characters."""
    part = list[Document]()
    num_characters = 0
    for document in documents:
        part.append(document)
        num_characters += len(document.text)
        if num_characters >= max_characters:
            yield part
            part = []
            num_characters = 0
    if part:
        yield part

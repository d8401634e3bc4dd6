"""Batches of tokenized documents: the kept documents of a unit."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from megatape.data.counts import CorpusCounts
from megatape.data.prepare.options import PreparationOptions
from megatape.data.shards.hashes import splits_of, table_hashes
from megatape.data.sources.document import Decide, Decision, Document, Record
from megatape.data.sources.reading import read_unit
from megatape.data.sources.units import Unit
from megatape.data.tokenizers.fast import FastTokenizer, IdsDiffer
from megatape.data.tokenizers.tokenizer import Tokenizer


class Batch(NamedTuple):
    """Documents that are tokenized together, by column.

    Attributes:
        splits: Split of each document.
        text_bytes: Size of each text in UTF-8.
        hashes: Hash of each text, as in tables of documents.
        places: Place of each document in the source.
        urls: Address of each document, or empty.
        inputs: Element of `Source.inputs` that contains each document.
        scores: Scores of each document by cleaning rules.
        ids: Token ids of each document.
    """

    splits: list[str]
    text_bytes: list[int]
    hashes: list[int]
    places: list[str]
    urls: list[str]
    inputs: list[str]
    scores: list[Mapping[str, float]]
    ids: list[np.ndarray]


def read_batches(
    options: PreparationOptions,
    unit: Unit,
    decide: Decide,
    tokenizer: Tokenizer | FastTokenizer,
    counts: CorpusCounts,
    heartbeat: Callable[[], None],
    record: Record | None = None,
) -> Iterator[Batch]:
    """Read and tokenize the kept documents of a unit.

    Args:
        options: Options of the preparation.
        unit: Unit of the source.
        decide: Decides about the unit's documents.
        tokenizer: Tokenizer, or a faster one with the same ids.
        counts: Counts to update.
        heartbeat: Called for each document, including empty and dropped ones.
        record: Called with each document and the decision about it.

    Raises:
        IdsDiffer: A fast tokenizer gives other ids than its tokenizer. The message names the place of the document.
    """

    def record_alive(document: Document, decision: Decision) -> None:
        heartbeat()
        if record is not None:
            record(document, decision)

    documents = read_unit(options.source, unit, counts, decide, record_alive)
    for part in _parts(documents, options.batch_characters):
        hashes = table_hashes([document.digest for document in part])
        if unit.split:
            splits = [unit.split] * len(part)
        else:
            splits = splits_of(hashes, options.validation_share)
        yield Batch(
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


def _encode(tokenizer: Tokenizer | FastTokenizer, documents: list[Document]) -> list[np.ndarray]:
    if not isinstance(tokenizer, FastTokenizer):
        return tokenizer.encode_documents([document.text for document in documents])
    try:
        return tokenizer.encode_documents([document.content for document in documents])
    except IdsDiffer as difference:
        place = documents[difference.number].place
        raise IdsDiffer(difference.number, f"{place}: {difference}") from difference


def _parts(documents: Iterable[Document], max_characters: int) -> Iterator[list[Document]]:
    """Yield the documents in parts of about this many characters."""
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

"""Reads, cleans and tokenizes the documents of a unit, and yields the kept documents in batches of columns."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from megatape.data.counts import CorpusCounts
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.passes.document_batch import DocumentBatch
from megatape.data.shards.entries import SPLITS, token_dtype
from megatape.data.shards.hashes import are_held_out, table_hashes
from megatape.data.shards.tables.table_writer import table_rows
from megatape.data.sources.document import Decide, Document, OnDecision
from megatape.data.sources.reading import read_unit
from megatape.data.sources.units import Unit
from megatape.data.tokenizers.fast import AnyTokenizer, FastTokenizer, IdsDiffer
from megatape.data.tokenizers.tokenizer import EncodedDocuments

TRAIN = SPLITS.index("train")
VALIDATION = SPLITS.index("validation")


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
        options: Options of the preparation.
        unit: Unit of the source.
        decide: Decides which documents to keep.
        tokenizer: Tokenizer, or a faster one with the same ids.
        counts: Counts to update.
        on_decision: Called for each document, including empty and dropped ones.

    Raises:
        IdsDiffer: A fast tokenizer gives other ids than its tokenizer. The message names the document's location.
    """
    documents = read_unit(options.source, unit, counts, decide, on_decision)
    for part in _parts(documents, options.batch_characters):
        texts, locations, urls, inputs, scores, _, contents, digests = zip(*part, strict=True)
        encoded = _encode(tokenizer, texts, contents, locations)
        hashes = table_hashes(digests)
        table = table_rows(
            tokens=encoded.lengths,
            text_bytes=list(map(len, contents)),
            locations=locations,
            urls=urls,
            hashes=hashes,
            scores=scores,
        )
        if unit.split:
            splits = np.full(len(part), SPLITS.index(unit.split))
        else:
            splits = np.where(are_held_out(hashes, options.validation_share), VALIDATION, TRAIN)
        yield DocumentBatch.build(table, splits, inputs, encoded.ids)
    unit.check_unchanged()


def _encode(
    tokenizer: AnyTokenizer, texts: Sequence[str], contents: Sequence[bytes], locations: Sequence[str]
) -> EncodedDocuments:
    """Encode texts.

    Args:
        tokenizer: Tokenizer, or a faster one with the same ids.
        texts: The texts.
        contents: The same texts in UTF-8.
        locations: Location of each text, for errors.

    Returns:
        Ids of the integer type that shards have.

    Raises:
        IdsDiffer: A fast tokenizer gives other ids than its tokenizer. The message names the text's location.
    """
    if isinstance(tokenizer, FastTokenizer):
        try:
            encoded = tokenizer.encode_documents(contents)
        except IdsDiffer as difference:
            location = locations[difference.number]
            raise IdsDiffer(difference.number, f"{location}: {difference}") from difference
    else:
        encoded = EncodedDocuments.join(tokenizer.encode_documents(list(texts)))
    assert 0 <= encoded.ids.min() <= encoded.ids.max() < tokenizer.vocab_size
    return encoded._replace(ids=encoded.ids.astype(token_dtype(tokenizer.vocab_size)))


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

"""What a data directory holds, as its report tells it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megatape.data.counts import DocumentCounts
from megatape.data.shards.index import SPLITS, Index, check_ledger, load_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.errors import path_errors

NUM_SAMPLES = 3  # of each split
SAMPLE_TOKENS = 128  # shown of each
NUM_DOMAINS = 20  # of each split


@dataclass(frozen=True)
class Bin:
    """Documents of `first` to `last` tokens, and how many tokens they have together."""

    first: int
    last: int
    documents: int
    tokens: int


@dataclass(frozen=True)
class TokenPreview:
    """The beginning of a document. place, url: where it is from; empty if the directory does not tell."""

    split: str
    tokens: int
    place: str
    url: str
    text: str


@dataclass(frozen=True)
class Contents:
    """What a data directory holds.

    Prompts and answers have neither lengths nor samples.

    Attributes:
        total: the sum of the ledger; None without one.
        lengths: of the documents of each split.
        domains: of each split those with the most documents, as `DocumentTables.domains` has them.
    """

    directory: Path
    index: Index
    total: DocumentCounts | None
    lengths: dict[str, list[Bin]]
    samples: list[TokenPreview]
    domains: dict[str, list[dict[str, Any]]]


@path_errors()
def read_contents(directory: Path) -> Contents:
    """Read a directory, whose ledger is checked. Without tables of documents the whole of it is read once, for the lengths.

    Raises FileNotFoundError or UserError if it is corrupted, or if a document is missing from its ledger.
    """
    index = load_index(directory)
    total = check_ledger(index) if index.ledger else None
    names = [] if index.answers else [name for name in SPLITS if index.splits[name].tokens]
    splits = {name: StoredSplit(directory, name) for name in names}
    for split in splits.values():
        if split.has_tables:
            split.tables.isolate()
    lengths = {name: histogram(split.document_lengths()) for name, split in splits.items()}
    samples = [sample for split in splits.values() for sample in _samples(split)]
    domains = {name: split.tables.domains(NUM_DOMAINS) for name, split in splits.items() if split.has_tables}
    return Contents(directory, index, total, lengths, samples, domains)


def histogram(lengths: Iterable[np.ndarray]) -> list[Bin]:
    """Bins from 2^k to 2^(k + 1) - 1 tokens, from the first that has documents to the last. lengths: int [n], in parts."""
    documents = tokens = np.zeros(64, np.int64)
    for part in lengths:
        exponents = np.frexp(part.astype(np.float64))[1] - 1
        documents = documents + np.bincount(exponents, minlength=64)
        tokens = tokens + np.bincount(exponents, part, 64).astype(np.int64)
    filled = np.flatnonzero(documents)
    if not filled.size:
        return []
    return [Bin(2**k, 2 ** (k + 1) - 1, int(documents[k]), int(tokens[k])) for k in range(filled[0], filled[-1] + 1)]


def _samples(split: StoredSplit) -> Iterator[TokenPreview]:
    """Documents at equal distances in the split."""
    tokenizer = split.tokenizer()
    size = split.num_tokens
    seen = set()
    for token in range(0, size, -(-size // NUM_SAMPLES)):
        found = split.tables.find(token) if split.has_tables else None
        first, tokens = (found.first, found.tokens) if found else (token, size - token)
        if first not in seen:
            seen.add(first)
            text = tokenizer.decode(split.stream(first, first + min(tokens, SAMPLE_TOKENS)))
            place, url = (found.place, found.url) if found else ("", "")
            yield TokenPreview(split.split, tokens if found else 0, place, url, text)

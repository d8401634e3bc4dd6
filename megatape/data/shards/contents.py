"""Summarizes a data directory for its report: counts, document lengths, sample texts and domains."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megatape.data.counts import DocumentCounts
from megatape.data.shards.entries import SPLITS, Index
from megatape.data.shards.index import load_index
from megatape.data.shards.ledger import check_ledger
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.shards.tables.document_tables import DomainTotal
from megatape.errors import path_errors

# Sample texts and domains shown per split.
NUM_SAMPLES = 3
NUM_DOMAINS = 20
# Tokens shown per sample text.
SAMPLE_TOKENS = 128
# Histogram bins, enough for any int64.
MAX_BINS = 64


@dataclass(frozen=True)
class Bin:
    """Documents of similar length.

    Attributes:
        first: Shortest length in tokens.
        last: Longest length in tokens.
        documents: Number of documents.
        tokens: Total number of tokens.
    """

    first: int
    last: int
    documents: int
    tokens: int


@dataclass(frozen=True)
class TokenPreview:
    """Beginning of a document.

    Attributes:
        split: Split name.
        tokens: Tokens in the document, 0 if the directory has no tables.
        location: Location in the source; empty if the directory has no tables.
        url: Address; empty if unknown.
        text: Beginning of the text.
    """

    split: str
    tokens: int
    location: str
    url: str
    text: str


@dataclass(frozen=True)
class Contents:
    """Summary of a data directory. Those with prompts and answers have neither lengths nor samples.

    Attributes:
        directory: Data directory.
        index: Its index.
        total: Ledger total, None without a ledger.
        lengths: Document length histograms, by split.
        samples: Beginnings of some documents.
        domains: Domains with the most documents, by split.
    """

    directory: Path
    index: Index
    total: DocumentCounts | None
    lengths: dict[str, list[Bin]]
    samples: list[TokenPreview]
    domains: dict[str, list[DomainTotal]]


@path_errors()
def read_contents(directory: Path) -> Contents:
    """Summarize a data directory and check its ledger. Without document tables, finding the lengths reads all tokens.

    Raises:
        FileNotFoundError: A file is missing.
        UserError: A file is corrupted, or a document is missing from the ledger.
    """
    index = load_index(directory)
    total = None
    if index.ledger:
        total = check_ledger(index)
    lengths = {}
    samples: list[TokenPreview] = []
    domains = {}
    for name in SPLITS:
        if index.answers or not index.splits[name].tokens:
            continue
        split = StoredSplit(directory, name)
        if split.has_tables:
            split.tables.isolate()
            domains[name] = split.tables.domains(NUM_DOMAINS)
        lengths[name] = histogram(split.document_lengths())
        samples += _samples(split)
    return Contents(directory, index, total, lengths, samples, domains)


def histogram(lengths: Iterable[np.ndarray]) -> list[Bin]:
    """Return bins of 2^k to 2^(k + 1) - 1 tokens, from the first bin with documents to the last.

    Args:
        lengths: Document lengths in parts, int [n].
    """
    documents = np.zeros(MAX_BINS, np.int64)
    tokens = np.zeros(MAX_BINS, np.int64)
    for part in lengths:
        exponents = np.frexp(part.astype(np.float64))[1] - 1
        documents += np.bincount(exponents, minlength=MAX_BINS)
        tokens += np.bincount(exponents, part, MAX_BINS).astype(np.int64)
    filled = np.flatnonzero(documents)
    if not filled.size:
        return []
    return [Bin(2**k, 2 ** (k + 1) - 1, int(documents[k]), int(tokens[k])) for k in range(filled[0], filled[-1] + 1)]


def _samples(split: StoredSplit) -> Iterator[TokenPreview]:
    """Yield evenly spaced documents. Without tables, samples begin anywhere in a document."""
    tokenizer = split.tokenizer()
    seen = set()
    step = -(split.num_tokens // -NUM_SAMPLES)
    for token in range(0, split.num_tokens, step):
        if not split.has_tables:
            end = min(token + SAMPLE_TOKENS, split.num_tokens)
            yield TokenPreview(split.name, 0, "", "", tokenizer.decode(split.stream(token, end)))
            continue
        document = split.tables.find(token)
        if document.first in seen:
            continue
        seen.add(document.first)
        end = document.first + min(document.tokens, SAMPLE_TOKENS)
        text = tokenizer.decode(split.stream(document.first, end))
        yield TokenPreview(split.name, document.tokens, document.location, document.url, text)

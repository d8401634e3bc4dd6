"""Summaries of finished units, and their sum."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from megatape.data.cleaning.arrays import CORRUPTED_ARRAYS
from megatape.data.counts import CorpusCounts
from megatape.data.document_entries import DocumentFile, DocumentTable
from megatape.data.shards.entries import SPLITS, Split
from megatape.data.shards.writer import entropy
from megatape.errors import UserError
from megatape.utils.json_files import read_json
from megatape.utils.validation import as_type

SUMMARY = "summary.json"
TOKEN_COUNTS = "token_counts.npz"


@dataclass(frozen=True)
class Summary:
    """Content of summary.json: the part of a unit in a data directory.

    Attributes:
        splits: Splits by name.
        tables: Tables of documents by the split's name.
        counts: Counts of all documents that were read.
        document_files: Files of documents, if they are kept. Units of earlier versions do not list them.
    """

    splits: dict[str, Split]
    tables: dict[str, list[DocumentTable]]
    counts: CorpusCounts
    document_files: list[DocumentFile] = field(default_factory=list)

    @classmethod
    def load(cls, folder: Path) -> tuple["Summary", dict[str, np.ndarray]]:
        """Read the summary of a finished unit.

        Returns:
            The summary, and the number of occurrences of each token by split, int64 [vocab_size].

        Raises:
            OSError: The summary cannot be read.
            UserError: The summary is corrupted.
        """
        try:
            summary = as_type(read_json(folder / SUMMARY), cls)
            with np.load(folder / TOKEN_COUNTS, allow_pickle=False) as content:
                token_counts = {split: content[split] for split in summary.splits}
            if not set(SPLITS) == summary.splits.keys() == summary.tables.keys():
                raise UserError(f"its splits are not {', '.join(SPLITS)}")
        except CORRUPTED_ARRAYS as error:
            raise UserError(f"{folder}: corrupted ({error!r}): remove it, and the same command prepares it again") from error
        return summary, token_counts


class UnitTotals:
    """Sums over the units of a data directory, in order. Memory holds the index, and one number for each token and split.

    Attributes:
        counts: Counts of all documents that were read.
        tables: Tables of documents by the split's name.
        document_files: Files of documents, if they are kept.
        files: Names of the files of all units, each with the number of its unit.
    """

    def __init__(self) -> None:
        self.counts = CorpusCounts()
        self.tables: dict[str, list[DocumentTable]] = {split: [] for split in SPLITS}
        self.document_files: list[DocumentFile] = []
        self.files: list[tuple[int, str]] = []
        self._parts: dict[str, list[Split]] = {split: [] for split in SPLITS}
        self._token_counts: dict[str, np.ndarray] = {}

    def add(self, summary: Summary, token_counts: dict[str, np.ndarray]) -> None:
        """Add the next unit. The arguments are the result of `Summary.load`."""
        number = len(self._parts[SPLITS[0]])
        self.counts.add(summary.counts)
        self.document_files += summary.document_files
        for split in SPLITS:
            self.files += [(number, shard.file) for shard in summary.splits[split].shards]
            self.files += [(number, table.file) for table in summary.tables[split]]
            self.tables[split] += summary.tables[split]
            self._parts[split].append(summary.splits[split])
            self._token_counts[split] = self._token_counts.get(split, 0) + token_counts[split]

    def splits(self) -> dict[str, Split]:
        """Return the splits of all units."""
        splits = {}
        for name, parts in self._parts.items():
            shards = []
            for part in parts:
                shards += part.shards
            splits[name] = Split(
                documents=sum(part.documents for part in parts),
                tokens=sum(part.tokens for part in parts),
                text_bytes=sum(part.text_bytes for part in parts),
                unigram_entropy=entropy(self._token_counts[name]),
                shards=shards,
            )
        return splits

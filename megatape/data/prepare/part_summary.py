"""Parts of a data directory, such as finished units or merged folders, and their sum."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from megatape.data.cleaning.stored.arrays import CORRUPTED_ARRAYS
from megatape.data.counts import CorpusCounts
from megatape.data.document_entries import DocumentFile, DocumentTable
from megatape.data.shards.entries import SPLITS, Shard, Split
from megatape.data.shards.writer import entropy
from megatape.errors import UserError
from megatape.utils.files.json_files import read_json
from megatape.utils.values.validation import as_type

SUMMARY = "summary.json"
TOKEN_COUNTS = "token_counts.npz"


@dataclass(frozen=True)
class PartSummary:
    """Index entries of a part, stored as summary.json of a unit.

    Attributes:
        splits: Splits by name.
        tables: Document tables by split.
        counts: Counts of all documents read.
        document_files: Document files, if they are kept. Units written by earlier versions do not list them.
    """

    splits: dict[str, Split]
    tables: dict[str, list[DocumentTable]]
    counts: CorpusCounts
    document_files: list[DocumentFile] = field(default_factory=list)


@dataclass(frozen=True)
class Part:
    """A part of a data directory.

    Attributes:
        summary: Index entries.
        token_counts: Occurrences of each token by split, int64 [vocab_size].
    """

    summary: PartSummary
    token_counts: dict[str, np.ndarray]

    @classmethod
    def load(cls, folder: Path) -> "Part":
        """Read a finished unit from its folder.

        Raises:
            OSError: The summary cannot be read.
            UserError: The summary is corrupted.
        """
        try:
            summary = as_type(read_json(folder / SUMMARY), PartSummary)
            with np.load(folder / TOKEN_COUNTS, allow_pickle=False) as content:
                token_counts = {split: content[split] for split in summary.splits}
            if not set(SPLITS) == summary.splits.keys() == summary.tables.keys():
                raise UserError(f"its splits are not {', '.join(SPLITS)}")
        except CORRUPTED_ARRAYS as error:
            raise UserError(f"{folder}: corrupted ({error!r}): remove it, and the same command prepares it again") from error
        return cls(summary, token_counts)


@dataclass(frozen=True)
class PartFile:
    """A shard or table, by the number of its part and its file name."""

    part: int
    name: str


class PartTotals:
    """Sums over the parts of a data directory, in order. Memory holds the index, and one number per token and split.

    Attributes:
        counts: Counts of all documents read.
        tables: Document tables by split.
        document_files: Document files, if they are kept.
        files: Shards and tables of all parts.
    """

    def __init__(self) -> None:
        self.counts = CorpusCounts()
        self.tables: dict[str, list[DocumentTable]] = {split: [] for split in SPLITS}
        self.document_files: list[DocumentFile] = []
        self.files: list[PartFile] = []
        self._parts: dict[str, list[Split]] = {split: [] for split in SPLITS}
        self._token_counts: dict[str, np.ndarray] = {}

    def add(self, part: Part) -> None:
        summary = part.summary
        number = len(self._parts[SPLITS[0]])
        self.counts.add(summary.counts)
        self.document_files += summary.document_files
        for split in SPLITS:
            self.files += [PartFile(number, shard.file) for shard in summary.splits[split].shards]
            self.files += [PartFile(number, table.file) for table in summary.tables[split]]
            self.tables[split] += summary.tables[split]
            self._parts[split].append(summary.splits[split])
            self._token_counts[split] = self._token_counts.get(split, 0) + part.token_counts[split]

    def splits(self) -> dict[str, Split]:
        splits = {}
        for name, parts in self._parts.items():
            shards: list[Shard] = []
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

"""Merges the files and indices of data directories, linking their shards and tables or writing shards of another size.

Reading all tokens once verifies them and counts how often each one occurs.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from megatape.data.counts import CorpusCounts
from megatape.data.derived.input_folder import InputFolder
from megatape.data.document_entries import DocumentTable, MergedFolder
from megatape.data.prepare.part_summary import Part, PartSummary, PartTotals
from megatape.data.shards.entries import SPLITS, Index, Shard
from megatape.data.shards.ledger import check_ledger
from megatape.data.shards.reading.reader import OnTokens, SplitReader
from megatape.data.shards.writer import MEMBER_TOKENS, SplitWriter
from megatape.utils.files.files import link_file

KIND = "merge"
# Index entry for a single file.
Entry = TypeVar("Entry", Shard, DocumentTable)


class DirectoryMerger:
    """Collects data directories, in order, and merges their indices.

    Args:
        target: Folder for links and new shards.
        progress: Called repeatedly with the number of tokens read since the last call.
        writers: Writers for new shards by split; empty to link shards.
    """

    def __init__(self, target: Path, progress: OnTokens, writers: Mapping[str, SplitWriter]) -> None:
        self._target = target
        self._progress = progress
        self._writers = writers
        self._indices: list[Index] = []
        self._origins: list[MergedFolder] = []
        self._totals = PartTotals()

    def add_in_place(self, folder: InputFolder) -> None:
        """Add a folder whose files are already in place.

        Raises:
            FileNotFoundError, UserError: A file is missing or corrupted.
        """
        self._add(folder, links_files=False)

    def add(self, folder: InputFolder) -> None:
        """Add a folder, and link its files.

        Raises:
            FileNotFoundError, UserError: A file is missing or corrupted.
        """
        self._add(folder, links_files=True)

    def index(self) -> Index:
        """Return the index of the merged directory, retaining what is the same in all folders.

        Raises:
            UserError: A document is missing in the ledger or counted twice.
        """
        first, *others = self._indices
        splits = self._totals.splits()
        for name, writer in self._writers.items():
            splits[name] = replace(splits[name], shards=writer.close().shards)
        source = first.source
        if others:
            source = {"kind": KIND, "folders": [origin.folder for origin in self._origins]}
        validation_share = first.validation_share
        if any(index.validation_share != validation_share for index in others):
            validation_share = 0.0
        rules = first.rules
        if any(index.rules != rules for index in others):
            rules = []
        document_tables = {}
        if first.document_tables:
            document_tables = self._totals.tables
        counts = Counter[str]()
        for index in self._indices:
            counts += Counter(index.counts)
        merged = replace(
            first,
            source=source,
            validation_share=validation_share,
            splits=splits,
            counts=dict(counts),
            document_tables=document_tables,
            ledger=self._totals.counts.inputs,
            rules=rules,
            document_files=[],
            merged=self._origins,
            earlier=None,
            fingerprint_version=2,
        )
        if merged.ledger:
            check_ledger(merged)
        return merged

    def _add(self, folder: InputFolder, links_files: bool) -> None:
        index = folder.index
        token_counts = self._read_tokens(folder)
        summary = PartSummary(index.splits, folder.tables(), CorpusCounts(inputs=index.ledger))
        if links_files:
            summary = self._linked(folder.path, summary)
        self._totals.add(Part(summary, token_counts))
        self._indices.append(index)
        self._origins += folder.origins

    def _read_tokens(self, folder: InputFolder) -> dict[str, np.ndarray]:
        """Read and verify all tokens in a folder, writing them to new shards if there are writers.

        Returns:
            Occurrences of each token by split, int64 [vocab_size].
        """
        token_counts = {}
        for split in SPLITS:
            counts = np.zeros(folder.index.tokenizer.vocab_size, np.int64)
            for ids in SplitReader(folder.path, folder.index, split).members(self._progress):
                counts += np.bincount(ids, minlength=counts.size)
                if self._writers:
                    self._writers[split].add(ids, text_bytes=0)
            token_counts[split] = counts
        return token_counts

    def _linked(self, path: Path, summary: PartSummary) -> PartSummary:
        """Link a folder's tables, and its shards unless new ones are being written. Returns the summary with the new names."""
        splits = dict(summary.splits)
        tables = {}
        for name in SPLITS:
            split = splits[name]
            if not self._writers:
                splits[name] = replace(split, shards=[self._link(path, name, shard) for shard in split.shards])
            tables[name] = [self._link(path, name, table) for table in summary.tables[name]]
        return replace(summary, splits=splits, tables=tables)

    def _link(self, path: Path, split: str, entry: Entry) -> Entry:
        """Link a file under a name including the folder's number. Returns its entry with this name."""
        number = len(self._origins)
        name = f"{split}-{number:04d}{entry.file.removeprefix(split)}"
        link_file(path / entry.file, self._target / name)
        return replace(entry, file=name)


def shard_writers(target: Path, index: Index, shard_tokens: int) -> dict[str, SplitWriter]:
    """Return writers for shards of another size, by split.

    Args:
        target: Folder for the shards.
        index: Index of a data directory with the same tokenizer.
        shard_tokens: Maximum tokens per shard.
    """
    member_tokens = min(shard_tokens, MEMBER_TOKENS)
    writers = {}
    for split in SPLITS:
        writers[split] = SplitWriter(
            target,
            split,
            index.tokenizer.vocab_size,
            index.tokenizer.eos_id,
            member_tokens=member_tokens,
            members_per_shard=shard_tokens // member_tokens,
        )
    return writers

"""Writes the documents of a unit: shards, document tables, and a summary."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from megatape.data.counts import CorpusCounts, DocumentCounts, sort_reasons
from megatape.data.document_entries import DocumentFile
from megatape.data.prepare.part_summary import SUMMARY, TOKEN_COUNTS, PartSummary
from megatape.data.prepare.passes.document_batch import DocumentBatch
from megatape.data.prepare.passes.documents import DocumentFiles
from megatape.data.prepare.progress import OnProgress, Progress
from megatape.data.shards.entries import SPLITS
from megatape.data.shards.tables.table_writer import TableWriter
from megatape.data.shards.writer import SplitWriter
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.utils.files.json_files import json_content


class UnitWriter:
    """Writes a unit's documents into a folder.

    Args:
        folder: Folder to write into.
        part: File name part, unique to the unit.
        tokenizer: Tokenizer of the documents.

    Attributes:
        counts: Documents written so far.
    """

    def __init__(self, folder: Path, part: str, tokenizer: Tokenizer) -> None:
        self._folder = folder
        self._shards: dict[str, SplitWriter] = {}
        self._tables: dict[str, TableWriter] = {}
        for split in SPLITS:
            name = f"{split}{part}"
            self._shards[split] = SplitWriter(folder, name, tokenizer.vocab_size, tokenizer.eos_id)
            self._tables[split] = TableWriter(folder, name)
        self.counts = CorpusCounts(inputs=defaultdict(DocumentCounts))

    def write(
        self,
        batches: Iterable[DocumentBatch],
        counts: CorpusCounts,
        on_progress: OnProgress,
        documents: DocumentFiles | None = None,
    ) -> None:
        """Write all documents and the summary.

        Args:
            batches: Documents to write.
            counts: Counts of all documents read, complete when the batches are.
            on_progress: Called after each batch.
            documents: Document files, complete when the batches are. None if documents are not kept.
        """
        for batch in batches:
            if len(batch):
                self.add(batch)
            on_progress(self._progress(counts))
        document_files: list[DocumentFile] = []
        if documents:
            document_files = documents.entries()
        self.close(counts, document_files)
        on_progress(self._progress(counts))

    def _progress(self, counts: CorpusCounts) -> Progress:
        total = self.counts.total
        return Progress(counts.read_bytes, total.written, total.text_bytes, total.tokens)

    def add(self, batch: DocumentBatch) -> None:
        """Append documents."""
        names, numbers = batch.numbered_inputs()
        num_documents = np.bincount(numbers)
        # Sums of floats are exact up to 2^53.
        num_tokens = np.bincount(numbers, batch.num_tokens)
        text_bytes = np.bincount(numbers, batch.text_bytes)
        for number, name in enumerate(names):
            counts = self.counts.inputs[name]
            counts.written += int(num_documents[number])
            counts.tokens += int(num_tokens[number])
            counts.text_bytes += int(text_bytes[number])
        for split in SPLITS:
            part = batch.in_split(split)
            if len(part):
                self._tables[split].add(part.table)
                self._shards[split].add(part.ids, int(part.text_bytes.sum()))

    def close(self, counts: CorpusCounts, document_files: Sequence[DocumentFile] = ()) -> None:
        """Write the remaining documents and the summary.

        Args:
            counts: Counts of all documents read.
            document_files: Document files, if they are kept.
        """
        splits = {split: writer.close() for split, writer in self._shards.items()}
        tables = {split: writer.close() for split, writer in self._tables.items()}
        token_counts: dict[str, Any] = {split: writer.token_counts for split, writer in self._shards.items()}
        np.savez(self._folder / TOKEN_COUNTS, **token_counts)
        summary = PartSummary(splits, tables, CorpusCounts(), list(document_files))
        summary.counts.add(counts)
        summary.counts.add(self.counts)
        for input_counts in summary.counts.inputs.values():
            input_counts.dropped = sort_reasons(input_counts.dropped)
        (self._folder / SUMMARY).write_bytes(json_content(asdict(summary), SUMMARY))

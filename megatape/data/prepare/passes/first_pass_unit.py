"""Result of the first pass over a unit: its tokenized documents, waiting for the decision pass.

The source is read once, although a document of another unit may decide which documents to keep. Files in the folder:

    documents.arrow   tokenized documents, in batches with checksums of their own (batch_file.py)
    codes.u1          a code for each document that the rules keep
    keys.bin          hashes and keys by which documents are compared with those of other units (sorted_keys.py)
    runs.u4           shingles, for near duplicates
    run_ends.u8       end of each document's shingles, and their checksum
    counts.json       counts of all documents read
    checksums.json    checksums of the other files except documents.arrow, verified before the files are used
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from megatape.data.cleaning.first_pass import CODES, KEEP, FirstPass
from megatape.data.counts import CorpusCounts
from megatape.data.prepare.passes.batch_file import stored_batches, write_batch
from megatape.data.prepare.passes.checksummed_files import ChecksummedFiles, check_files
from megatape.data.prepare.passes.document_batch import DocumentBatch
from megatape.data.prepare.progress import OnProgress, Progress
from megatape.errors import UserError
from megatape.utils.files.json_files import json_content, read_json
from megatape.utils.values.validation import as_type

DOCUMENTS = "documents.arrow"
COUNTS = "counts.json"
# File of versions that stored batches as lines of JSON.
EARLIER_DOCUMENTS = "documents.jsonl"


class FirstPassUnit:
    """Writes and reads the result of a first pass, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(
        self, batches: Iterable[DocumentBatch], first_pass: FirstPass, counts: CorpusCounts, on_progress: OnProgress
    ) -> None:
        """Write all files.

        Args:
            batches: Documents to write.
            first_pass: Hashes and keys of the documents, complete when the batches are.
            counts: Counts of all documents read, complete when the batches are.
            on_progress: Called after each batch.
        """
        files = ChecksummedFiles(self.folder)
        with (self.folder / DOCUMENTS).open("xb") as document_file:
            for number, batch in enumerate(batches):
                write_batch(document_file, batch, number)
                first_pass.save_shingles(files.append)
                on_progress(Progress(counts.read_bytes))
        first_pass.save(files.append)
        files.append(COUNTS, json_content(asdict(counts), COUNTS))
        files.close()

    def check(self) -> None:
        """Verify the checksums of all files except the documents, which are verified when they are read.

        Raises:
            UserError: A file is corrupted, or an earlier version wrote the folder.
            FileNotFoundError: A file is missing.
        """
        check_files(self.folder)
        if (self.folder / EARLIER_DOCUMENTS).exists():
            raise UserError(
                f"{self.folder}: written by an earlier version: remove it, and the same command prepares its unit again"
            )

    def counts(self) -> CorpusCounts:
        return as_type(read_json(self.folder / COUNTS), CorpusCounts)

    def dropped_by(self, dropped_rows: Sequence[np.ndarray]) -> np.ndarray:
        """Return the decision about each document.

        Args:
            dropped_rows: Result of `DecisionPass.dropped_rows`.

        Returns:
            uint8 [documents]: 0 to keep a document, otherwise 1 + the index of the rule that drops it (the last one, if several
            do).
        """
        codes = np.fromfile(self.folder / CODES, np.uint8)
        dropped_by = np.zeros(codes.size, np.uint8)
        for index, rows in enumerate(dropped_rows, start=1):
            self._check(not rows.size or rows.max() < codes.size)
            dropped_by[rows] = index
        return dropped_by[codes == KEEP]

    def kept_batches(self, dropped_by: np.ndarray, rules: Sequence[str], counts: CorpusCounts) -> Iterator[DocumentBatch]:
        """Yield the documents that the decision pass keeps, one batch at a time.

        Args:
            dropped_by: Result of `dropped_by`, uint8 [documents].
            rules: Rules that `dropped_by` counts, in order.
            counts: Counts of the first pass. Dropped documents are added, by input and rule.

        Raises:
            UserError: The folder is corrupted.
        """
        num_read = 0
        for batch in stored_batches(self.folder / DOCUMENTS):
            batch_dropped_by = dropped_by[num_read : num_read + len(batch)]
            num_read += len(batch)
            self._check(num_read <= dropped_by.size)

            is_kept = batch_dropped_by == 0
            dropped = batch.select(~is_kept)
            for input_name, rule_number in zip(dropped.inputs, batch_dropped_by[~is_kept].tolist(), strict=True):
                counts.inputs[input_name].add_dropped(rules[rule_number - 1])
            yield batch.select(is_kept)
        self._check(num_read == dropped_by.size)

    def _check(self, is_complete: bool) -> None:
        if not is_complete:
            raise UserError(f"{self.folder}: corrupted: remove it, and the same command prepares it again")

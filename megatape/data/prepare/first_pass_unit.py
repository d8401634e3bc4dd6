"""Result of the first pass over a unit: its tokenized documents, waiting for the decision pass.

The source is read once, although a document of another unit may decide which documents to keep. Files in the folder:

    documents.jsonl   a line per batch: its columns, with the number of tokens of each document
    tokens.bin        all tokens
    keys.npz          hashes and keys by which documents are compared with those of other units
    runs.u4           shingles, for near duplicates
    run_ends.npy      end of each document's shingles
    counts.json       counts of all documents read
    checksums.json    checksums of the files above, verified before they are used
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import accumulate, pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import orjson

from megatape.data.cleaning.comparison import read_comparison
from megatape.data.cleaning.first_pass import CODES, KEEP, KEYS, FirstPass
from megatape.data.counts import CorpusCounts
from megatape.data.prepare.checksummed_files import ChecksummedFiles, check_files
from megatape.data.prepare.document_batch import DocumentBatch
from megatape.data.prepare.progress import OnProgress, Progress
from megatape.data.shards.entries import token_dtype
from megatape.errors import UserError
from megatape.utils.json_files import json_content, read_json
from megatape.utils.validation import as_type

DOCUMENTS = "documents.jsonl"
TOKENS = "tokens.bin"
COUNTS = "counts.json"


class FirstPassUnit:
    """Writes and reads the result of a first pass, in one folder."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        self.folder = folder
        self._vocab_size = vocab_size
        self._dtype = token_dtype(vocab_size)

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
        # Create the files even if there are no documents.
        files.append(DOCUMENTS, b"")
        files.append(TOKENS, b"")
        for batch in batches:
            files.append(DOCUMENTS, _document_line(batch))
            tokens = np.concatenate(batch.ids)
            assert 0 <= tokens.min() <= tokens.max() < self._vocab_size
            files.append(TOKENS, tokens.astype(self._dtype).data)
            first_pass.save_shingles(files.append)
            on_progress(Progress(counts.read_bytes))
        first_pass.save(files.append)
        files.append(COUNTS, json_content(asdict(counts), COUNTS))
        files.close()

    def check(self) -> None:
        """Verify the checksums of all files.

        Raises:
            UserError: A file is corrupted.
            FileNotFoundError: A file is missing.
        """
        check_files(self.folder)

    def counts(self) -> CorpusCounts:
        return as_type(read_json(self.folder / COUNTS), CorpusCounts)

    def dropped_by(self, flag_files: Sequence[Path], number: int) -> np.ndarray:
        """Return the decision about each document.

        Args:
            flag_files: Result of `DecisionPass.flag_files`, a file per rule.
            number: Unit number.

        Returns:
            uint8 [documents]: 0 to keep a document, otherwise 1 + the index of the rule that drops it (the last one, if several
            do).
        """
        with np.load(self.folder / KEYS, allow_pickle=False) as arrays:
            codes = arrays[CODES]
        dropped_by = np.zeros(codes.size, np.uint8)
        for index, file in enumerate(flag_files, start=1):
            packed_flags = read_comparison(file, str(number))
            if packed_flags.size != -(codes.size // -8):
                raise UserError(f"{file}: corrupted: remove it, and the same command compares the documents again")
            is_dropped = np.unpackbits(packed_flags, count=codes.size).astype(bool)
            dropped_by[is_dropped] = index
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
        for batch in self._batches():
            batch_dropped_by = dropped_by[num_read : num_read + len(batch)]
            num_read += len(batch)
            self._check(num_read <= dropped_by.size)

            for document in np.flatnonzero(batch_dropped_by):
                rule = rules[batch_dropped_by[document] - 1]
                counts.inputs[batch.inputs[document]].add_dropped(rule)

            is_kept = batch_dropped_by == 0
            yield batch.select(is_kept.tolist())
        self._check(num_read == dropped_by.size)

    def _batches(self) -> Iterator[DocumentBatch]:
        with (self.folder / DOCUMENTS).open("rb") as document_file, (self.folder / TOKENS).open("rb") as token_file:
            for line in document_file:
                yield self._read_batch(line, token_file)

    def _read_batch(self, line: bytes, token_file: BinaryIO) -> DocumentBatch:
        """Return the batch of a line written by `_document_line`, with its tokens from the other file."""
        *columns, lengths = orjson.loads(line)
        ends = list(accumulate(lengths, initial=0))
        num_tokens = ends[-1]
        tokens = np.fromfile(token_file, self._dtype, num_tokens)
        self._check(tokens.size == num_tokens)
        ids = [tokens[begin:end] for begin, end in pairwise(ends)]
        columns.append(ids)
        return DocumentBatch(*columns)

    def _check(self, is_complete: bool) -> None:
        if not is_complete:
            raise UserError(f"{self.folder}: corrupted: remove it, and the same command prepares it again")


def _document_line(batch: DocumentBatch) -> bytes:
    """Return a batch as a line of JSON: its columns in order, with token counts instead of tokens."""
    columns = [
        batch.splits,
        batch.text_bytes,
        batch.hashes,
        batch.places,
        batch.urls,
        batch.inputs,
        batch.scores,
        batch.num_tokens,
    ]
    return orjson.dumps(columns) + b"\n"

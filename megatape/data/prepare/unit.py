"""One unit of a preparation: its documents are read, decided about, divided into splits, tokenized and written.

Where they are compared with those of other units, they are a draft in between, so that the source is read once. Its folder:

    documents.jsonl   a line for each batch: its columns, and the number of tokens of each document
    tokens.bin        the tokens of all documents
    keys.npz          hashes and keys of the documents, by which `FirstPass` compares them with those of other units
    runs.u4           runs of words of the documents, for near duplicates, and run_ends.npy: where those of each end
    counts.json       counts of all that was read
    checksums.json    checksums of the files above, which are verified before they are used
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, compress, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from megatape.data.cleaning.decisions import CORRUPTED_ARRAYS, KEEP, KEYS, FirstPass, read_comparison
from megatape.data.counts import CorpusCounts, DocumentCounts, sort_reasons
from megatape.data.document_entries import DocumentFile, DocumentTable
from megatape.data.prepare.corpus import Corpus
from megatape.data.prepare.documents import DocumentFiles
from megatape.data.prepare.draft_files import ChecksummedFiles, check_files
from megatape.data.shards.entries import SPLITS, Split, token_dtype
from megatape.data.shards.hashes import splits_of, table_hashes
from megatape.data.shards.table_writer import TableWriter
from megatape.data.shards.writer import SplitWriter, entropy
from megatape.data.sources.document import Decide, Decision, Document, Record
from megatape.data.sources.reading import read_unit
from megatape.data.sources.units import Unit
from megatape.data.tokenizers.fast import FastTokenizer, IdsDiffer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from megatape.utils.files import as_type, json_content, read_json

SUMMARY = "summary.json"
TOKEN_COUNTS = "token_counts.npz"
DOCUMENTS = "documents.jsonl"
TOKENS = "tokens.bin"
COUNTS = "counts.json"
BATCH_CHARACTERS = 4_000_000  # tokenized at a time: enough to keep every thread busy


class Progress(NamedTuple):
    """Work done so far, in a pass over a unit or in a whole preparation.

    Attributes:
        read_bytes: Number of bytes read of the files as they are stored.
        written: Number of documents written.
        text_bytes: Size of their texts in UTF-8.
        tokens: Number of tokens written.
        total_bytes: Number of bytes to read in all; 0 if unknown.
    """

    read_bytes: int
    written: int = 0
    text_bytes: int = 0
    tokens: int = 0
    total_bytes: int = 0


Report = Callable[[Progress], None]


class Batch(NamedTuple):
    """Documents that are tokenized together, by column.

    Attributes:
        splits: Split of each.
        text_bytes: Size of its text in UTF-8.
        hashes: Hash of its text, as tables keep it.
        places: Its place in the source.
        urls: Its address, or empty.
        inputs: The one of `Source.inputs` that has it.
        scores: Its scores by cleaning rules.
        ids: Its token ids.
    """

    splits: list[str]
    text_bytes: list[int]
    hashes: list[int]
    places: list[str]
    urls: list[str]
    inputs: list[str]
    scores: list[Mapping[str, float]]
    ids: list[np.ndarray]


@dataclass(frozen=True)
class Summary:
    """Content of summary.json: the part of a unit in a data directory.

    Attributes:
        splits: Splits by name.
        tables: Tables of documents by the split's name.
        counts: Counts of all that was read.
        document_files: Files of documents, if they are kept; units of earlier versions do not list them.
    """

    splits: dict[str, Split]
    tables: dict[str, list[DocumentTable]]
    counts: CorpusCounts
    document_files: list[DocumentFile] = field(default_factory=list)

    @classmethod
    def load(cls, folder: Path) -> tuple["Summary", dict[str, np.ndarray]]:
        """The summary of a finished unit, and how often each token occurs in each split, int64 [vocab_size].

        Raises OSError, or UserError if it cannot be read.
        """
        try:
            summary = as_type(read_json(folder / SUMMARY), cls)
            with np.load(folder / TOKEN_COUNTS, allow_pickle=False) as content:
                token_counts = {split: content[split] for split in summary.splits}
            if not set(SPLITS) == summary.splits.keys() == summary.tables.keys():
                raise UserError(f"its splits are not {', '.join(SPLITS)}")
            return summary, token_counts
        except CORRUPTED_ARRAYS as error:
            raise UserError(f"{folder}: corrupted ({error!r}): remove it, and the same command prepares it again") from error


class UnitTotals:
    """Sums over the units of a data directory, in order. Memory holds the index, and one number for each token and split.

    Attributes:
        counts: Counts of all that was read.
        tables: Tables of documents by the split's name.
        document_files: Files of documents, if they are kept.
        files: Names of the files that the units have written, each with the number of its unit.
    """

    def __init__(self) -> None:
        self.counts = CorpusCounts()
        self.tables: dict[str, list[DocumentTable]] = {split: [] for split in SPLITS}
        self.document_files: list[DocumentFile] = []
        self.files: list[tuple[int, str]] = []
        self._parts: dict[str, list[Split]] = {split: [] for split in SPLITS}
        self._token_counts: dict[str, np.ndarray] = {}

    def add(self, summary: Summary, token_counts: dict[str, np.ndarray]) -> None:
        """Add the next unit, as `Summary.load` returns it."""
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
        """The splits of all units."""
        return {
            split: Split(
                documents=sum(part.documents for part in parts),
                tokens=sum(part.tokens for part in parts),
                text_bytes=sum(part.text_bytes for part in parts),
                unigram_entropy=entropy(self._token_counts[split]),
                shards=[shard for part in parts for shard in part.shards],
            )
            for split, parts in self._parts.items()
        }


class UnitWriter:
    """Writes a unit's documents: shards, tables of documents, and a summary.

    Args:
        folder: Folder to write into.
        part: Part of the names of its files that no other unit has.
        tokenizer: Tokenizer.

    Attributes:
        counts: Counts of the documents written so far.
    """

    def __init__(self, folder: Path, part: str, tokenizer: Tokenizer) -> None:
        self._folder = folder
        names = {split: f"{split}{part}" for split in SPLITS}
        self._shards = {
            split: SplitWriter(folder, name, tokenizer.vocab_size, tokenizer.eos_id) for split, name in names.items()
        }
        self._tables = {split: TableWriter(folder, name) for split, name in names.items()}
        self.counts = CorpusCounts(inputs=defaultdict(DocumentCounts))

    def write(
        self, batches: Iterable[Batch], counts: CorpusCounts, report: Report, documents: DocumentFiles | None = None
    ) -> None:
        """Write all documents and the summary.

        Args:
            batches: The documents.
            counts: Counts of all that was read, complete when the batches are.
            report: Called again and again.
            documents: Files of kept documents, complete when the batches are; None if documents are not kept.
        """
        for batch in batches:
            self.add(batch)
            report(self._progress(counts))
        document_files = documents.entries() if documents else []
        self.close(counts, document_files)
        report(self._progress(counts))

    def _progress(self, counts: CorpusCounts) -> Progress:
        total = self.counts.total
        return Progress(counts.read_bytes, total.written, total.text_bytes, total.tokens)

    def add(self, batch: Batch) -> None:
        """Append documents."""
        sizes = [ids.size for ids in batch.ids]
        for name, size, text_bytes in zip(batch.inputs, sizes, batch.text_bytes, strict=True):
            counts = self.counts.inputs[name]
            counts.written += 1
            counts.tokens += size
            counts.text_bytes += text_bytes
        for split, shards in self._shards.items():
            chosen = [name == split for name in batch.splits]
            if any(chosen):
                columns: tuple[list[Any], ...] = (sizes, batch.text_bytes, batch.places, batch.urls, batch.hashes, batch.scores)
                rows = [list(compress(column, chosen)) for column in columns]
                self._tables[split].add(*rows)
                shards.add(np.concatenate(list(compress(batch.ids, chosen))), sum(rows[1]))

    def close(self, counts: CorpusCounts, document_files: Sequence[DocumentFile] = ()) -> None:
        """Write the rest and the summary.

        Args:
            counts: Counts of all that was read.
            document_files: Files of documents, if they are kept.
        """
        splits = {split: writer.close() for split, writer in self._shards.items()}
        tables = {split: writer.close() for split, writer in self._tables.items()}
        token_counts: dict[str, Any] = {split: writer.token_counts for split, writer in self._shards.items()}
        np.savez(self._folder / TOKEN_COUNTS, **token_counts)
        summary = Summary(splits, tables, CorpusCounts(), list(document_files))
        summary.counts.add(counts)
        summary.counts.add(self.counts)
        for of_input in summary.counts.inputs.values():
            of_input.dropped = sort_reasons(of_input.dropped)
        (self._folder / SUMMARY).write_bytes(json_content(asdict(summary), SUMMARY))


def read_batches(
    corpus: Corpus,
    unit: Unit,
    decide: Decide,
    tokenizer: Tokenizer | FastTokenizer,
    counts: CorpusCounts,
    beat: Callable[[], None],
    record: Record | None = None,
) -> Iterator[Batch]:
    """Read and tokenize the documents of a unit that are kept.

    Args:
        corpus: The corpus.
        unit: One of its units.
        decide: Decides about the unit's documents.
        tokenizer: Tokenizer, or a faster one with the same ids.
        counts: Counts to update.
        beat: Called for each document, those that are empty or dropped included.
        record: Called with each document and the decision about it.

    Raises:
        IdsDiffer: A fast tokenizer gives other ids than its tokenizer; it names the place of the document.
    """

    def record_alive(document: Document, decision: Decision) -> None:
        beat()
        if record is not None:
            record(document, decision)

    for part in _parts(read_unit(corpus.source, unit, counts, decide, record_alive)):
        texts, places, urls, inputs, scores, _, contents, digests = map(list, zip(*part, strict=True))
        try:
            ids = tokenizer.encode_documents(contents if isinstance(tokenizer, FastTokenizer) else texts)
        except IdsDiffer as difference:
            raise IdsDiffer(difference.number, f"{places[difference.number]}: {difference}") from difference
        hashes = table_hashes(digests)
        splits = [unit.split] * len(texts) if unit.split else splits_of(hashes, corpus.validation_share)
        yield Batch(splits, list(map(len, contents)), hashes, places, urls, inputs, scores, ids)
    unit.check_unchanged()


def _parts(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """The documents, about BATCH_CHARACTERS at a time."""
    part = list[Document]()
    num_characters = 0
    for document in documents:
        part.append(document)
        num_characters += len(document.text)
        if num_characters >= BATCH_CHARACTERS:
            yield part
            part = []
            num_characters = 0
    if part:
        yield part


class Draft:
    """The draft of a unit.

    Attributes:
        folder: Folder that has it.
    """

    def __init__(self, folder: Path, vocab_size: int) -> None:
        self.folder = folder
        self._vocab_size = vocab_size
        self._dtype = token_dtype(vocab_size)

    def write(self, batches: Iterable[Batch], first_pass: FirstPass, counts: CorpusCounts, report: Report) -> None:
        """Write it. first_pass, counts: of the documents, complete when the batches are."""
        files = ChecksummedFiles(self.folder)
        files.append(DOCUMENTS, b"")  # Creates the file even if there are no documents.
        files.append(TOKENS, b"")
        for batch in batches:
            sizes = [ids.size for ids in batch.ids]
            files.append(DOCUMENTS, orjson.dumps([*batch[:-1], sizes]) + b"\n")
            ids = np.concatenate(batch.ids)
            assert 0 <= ids.min() <= ids.max() < self._vocab_size
            files.append(TOKENS, ids.astype(self._dtype).data)
            first_pass.save_runs(files.append)
            report(Progress(counts.read_bytes))
        first_pass.save(files.append)
        files.append(COUNTS, json_content(asdict(counts), COUNTS))
        files.close()

    def check(self, *names: str) -> None:
        """Verify the checksums of these files, by default of all.

        Raises:
            UserError: A file is corrupted.
            FileNotFoundError: A file is missing.
        """
        check_files(self.folder, names)

    def counts(self) -> CorpusCounts:
        """Counts of all that was read."""
        return as_type(read_json(self.folder / COUNTS), CorpusCounts)

    def kept(self, drops: np.ndarray, rules: Sequence[str], counts: CorpusCounts) -> Iterator[Batch]:
        """The documents that are kept.

        Args:
            drops: See `drops`.
            rules: The rule of each comparison.
            counts: Counts of what was read, to which those that are dropped are added.

        Raises:
            UserError: The draft is corrupted.
        """
        num_read = 0
        with (self.folder / DOCUMENTS).open("rb") as documents, (self.folder / TOKENS).open("rb") as file:
            for line in documents:
                *columns, sizes = orjson.loads(line)
                inputs = columns[Batch._fields.index("inputs")]
                ends = list(accumulate(sizes, initial=0))
                tokens = np.fromfile(file, self._dtype, ends[-1])
                self._check(tokens.size == ends[-1])
                columns.append([tokens[begin:end] for begin, end in pairwise(ends)])
                batch_drops = drops[num_read : num_read + len(inputs)]
                num_read += len(inputs)
                self._check(num_read <= drops.size)
                for document in np.flatnonzero(batch_drops):
                    dropped = counts.inputs[inputs[document]].dropped
                    rule = rules[batch_drops[document] - 1]
                    dropped[rule] = dropped.get(rule, 0) + 1
                kept = (batch_drops == 0).tolist()
                yield Batch._make(list(compress(column, kept)) for column in columns)
        self._check(num_read == drops.size)

    def _check(self, is_whole: bool) -> None:
        if not is_whole:
            raise UserError(f"{self.folder}: corrupted: remove it, and the same command prepares it again")

    def drops(self, compared: Sequence[Path], number: int) -> np.ndarray:
        """Return a number per document: 0 to keep it, or 1 + the index of the last file that drops it.

        Args:
            compared: Files with the results of `near_drops`, and of `compare` for exact duplicates.
            number: Number of the unit.
        """
        with np.load(self.folder / KEYS, allow_pickle=False) as content:
            codes = content["codes"]
        drops = np.zeros(codes.size, np.uint8)
        for rank, file in enumerate(compared, 1):
            repeats = read_comparison(file, str(number))
            if repeats.size != -(codes.size // -8):
                raise UserError(f"{file}: corrupted: remove it, and the same command compares the documents again")
            drops[np.unpackbits(repeats, count=codes.size).astype(bool)] = rank
        return drops[codes == KEEP]

"""A split of a data directory: its token stream, documents and tokenizer."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from megatape.data.document_entries import INDEX_FILE, DocumentTable
from megatape.data.shards.entries import SPLITS, Index
from megatape.data.shards.index import open_index
from megatape.data.shards.index_formats.index_columns import shard_numbers
from megatape.data.shards.reading.cache import CacheFolder
from megatape.data.shards.reading.data_folder import open_folder
from megatape.data.shards.reading.reader import SplitReader
from megatape.data.shards.tables.document_tables import DocumentTables, lengths_by_end
from megatape.data.tokenizers.files import stored_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError, flag
from megatape.errors.suggestions import choose_one


class StoredSplit:
    """A split, opened for reading. Its tokens form one stream, in the order in which they were prepared.

    Args:
        directory: Path or URL of the data directory.
        name: Name of the split, one of SPLITS.
        cache: See SplitReader.

    Attributes:
        directory: Path or URL of the data directory.
        name: Name of the split.
        description: Split and directory, for errors.
        shards: Shard entries from the index.
        shard_ends: Tokens up to the end of each shard, int64 [shards].
        num_tokens: Number of tokens.
        tokenizer_entry: Tokenizer entry from the index.
        tokenizer_hash: sha256 of the tokenizer.
        vocab_size: Largest token id plus one.
        bos_id: First token of documents, or None if they begin with their text.
        eos_id: Last token of documents.
        unigram_entropy: Entropy of the token frequencies, nats per token.
        answers: Answers entry from the index, or None if whole documents are learned.
        fingerprint: sha256 over the split's content and its tokenizer.

    Raises:
        UserError, FileNotFoundError: The data directory is missing or corrupted.
    """

    def __init__(self, directory: str | Path, name: str, cache: CacheFolder | None = None) -> None:
        if name not in SPLITS:
            raise UserError(f"{flag('split')} is {name!r}: {choose_one(name, SPLITS)}")
        self.directory = str(directory)
        self.name = name
        self.description = f"split {name} of {directory}"
        self._folder = open_folder(directory, cache)
        self._index = open_index(self._folder.directory)
        content = self._index.splits[name]
        self.shards = content.shards
        self.num_tokens = content.tokens
        self.unigram_entropy = content.unigram_entropy
        entry = self._index.tokenizer
        self.tokenizer_entry = entry
        self.tokenizer_hash = entry.sha256
        self.vocab_size = entry.vocab_size
        self.bos_id = entry.bos_id
        self.eos_id = entry.eos_id
        self.answers = self._index.answers.get(name)
        self.fingerprint = self._index.fingerprint(name)
        self._reader = SplitReader(self._folder.origin, self._index, name, cache)
        starts = np.append(0, np.cumsum(shard_numbers(content.shards, "tokens")))
        self.shard_ends = starts[1:]
        # Tokens before each shard, and in all. A view gives Python's integers faster than the array.
        self._starts = starts.data

    @property
    def index(self) -> Index:
        """Index of the data directory."""
        return self._index

    def stream(self, begin: int, end: int) -> np.ndarray:
        """Return tokens [begin, end) of the stream, int64. Raises IndexError outside the split."""
        return self.stored_ids(begin, end).astype(np.int64)

    def stored_ids(self, begin: int, end: int) -> np.ndarray:
        """Return tokens [begin, end) of the stream in the type in which they are stored. Raises like `stream`."""
        if not 0 <= begin <= end <= self.num_tokens:
            raise IndexError(f"tokens {begin} to {end} of {self.num_tokens}")
        shard = bisect_right(self._starts, begin) - 1
        start = self._starts[shard]
        if begin < end <= self._starts[shard + 1]:
            # Most samples lie in one shard.
            return self._reader.read(shard, begin - start, end - start)
        parts = [np.empty(0, np.uint16)]
        while begin < end:
            start = self._starts[shard]
            last = min(end, self._starts[shard + 1])
            parts.append(self._reader.read(shard, begin - start, last - start))
            begin = last
            shard += 1
        return np.concatenate(parts)

    def expect(self, shards: Sequence[int]) -> None:
        """Announce the shards needed next, by number. With a cache, they are copied ahead."""
        self._reader.expect(shards)

    def document(self, number: int) -> np.ndarray:
        """Return a document's tokens, given its number in the split, int64.

        Raises:
            UserError: The directory has no document tables, or no such document.
        """
        begin, end = self.tables.span(number)
        return self.stream(begin, end)

    def members(self) -> Iterator[np.ndarray]:
        """Yield all token ids in order, one shard member at a time.

        Raises:
            UserError: The content differs from the index.
            OSError: A shard cannot be read.
        """
        return self._reader.members()

    @property
    def shard_folder(self) -> Path:
        """Local folder with the shards or their copies."""
        return self._reader.folder

    def fetch(self, name: str) -> Path:
        """Return a small file's local path, after copying it from a URL if necessary.

        Raises:
            OSError: The file cannot be copied.
        """
        self._folder.fetch(name)
        return self._folder.directory / name

    @property
    def table_entries(self) -> list[DocumentTable]:
        """Entries of the split's document tables in the index; empty without tables."""
        return self._index.document_tables.get(self.name, [])

    @property
    def has_tables(self) -> bool:
        """Whether the split has document tables."""
        return bool(self.table_entries)

    @cached_property
    def tables(self) -> DocumentTables:
        """Document tables. Raises UserError if the split has none."""
        self._folder.fetch(*(table.file for table in self.table_entries))
        return DocumentTables(self._folder.directory, self._index, self.name)

    def document_lengths(self) -> Iterator[np.ndarray]:
        """Yield document lengths in tokens, in order, int64, in parts. Without tables, this reads the whole split."""
        if self.has_tables:
            return self.tables.lengths()
        return lengths_by_end(self._reader.members(), self.eos_id)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the data.

        Raises:
            UserError, FileNotFoundError: Its files are missing or differ from the index, or the index lists other special
                tokens, which would move the boundaries of documents.
        """
        entry = self.tokenizer_entry
        self._folder.fetch(*entry.files)
        tokenizer = stored_tokenizer(self._folder.directory, entry.files)
        for field in ("vocab_size", "bos_id", "eos_id"):
            recorded = getattr(entry, field)
            actual = getattr(tokenizer, field)
            if recorded != actual:
                raise UserError(
                    f"{self._folder.origin}/{INDEX_FILE}: corrupted, {field} is {recorded}, but {actual} by {entry.file}: copy "
                    "it again or re-run the preparation"
                )
        return tokenizer

"""A data directory on this machine, or at a URL, whose index and other small files are copied here first.

Of a split it has the tokens and, in tables of documents, how long each document is and where it comes from. writer.py has the
columns of the tables.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache as once
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from megatape.data.document_entries import INDEX_FILE, DocumentTable
from megatape.data.io.remote import copy_file, is_url
from megatape.data.shards.cache import CacheFolder
from megatape.data.shards.index import SPLITS, Index, check_file, file_sha256, load_index
from megatape.data.shards.reader import SplitReader
from megatape.data.shards.table_file import TableFile, verify_table
from megatape.data.shards.writer import ROWS
from megatape.data.tokenizers.files import stored_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError, choose_one
from megatape.utils.files import rename
from megatape.utils.masking import is_masked

if TYPE_CHECKING:
    from pyarrow import Table

# Of a URL in lower case, with or without its scheme.
DOMAIN = r"^(?:[a-z][a-z0-9+.-]*://)?(?:[^/?#@]*@)?(?:www\.)?(?P<domain>[^/:?#]+)"
TABLES_KEPT = 8  # in memory, with eight bytes for each document


@dataclass(frozen=True)
class DataFolder:
    """origin: path or URL of a data directory. directory: where its small files are on this machine."""

    origin: str
    directory: Path

    def fetch(self, *names: str) -> None:
        """See that files are on this machine, if they are at a URL; readers verify their content. Raises OSError."""
        for name in names if is_url(self.origin) else ():
            path = self.directory / name
            if not path.is_file():
                with TemporaryDirectory(dir=self.directory) as temporary:  # the ranks of a node do the same at once
                    copy_file(f"{self.origin}/{name}", Path(temporary) / name)
                    rename(Path(temporary) / name, path)


def open_folder(name: str | Path, cache: CacheFolder | None) -> DataFolder:
    """The data directory at a path or URL, which needs a cache. Raises OSError if what is at a URL cannot be copied."""
    origin = str(name)
    if is_masked(origin):
        raise UserError(f"{origin}: its password or signature is masked, as in the files of a run: give the original data.path")
    if not is_url(origin):
        return DataFolder(origin, Path(origin))
    assert cache is not None, "the configuration demands one"
    return _fetched(origin.rstrip("/"), cache.root)


@once  # so both splits of a run are of one index, whatever happens at the URL
def _fetched(url: str, root: Path) -> DataFolder:
    root.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=root) as temporary:
        index = Path(temporary) / INDEX_FILE
        copy_file(f"{url}/{INDEX_FILE}", index)
        directory = root / file_sha256(index)[:16]  # what it holds belongs to this index
        directory.mkdir(exist_ok=True)
        rename(index, directory / INDEX_FILE)
    return DataFolder(url, directory)


class StoredSplit:
    """The tokens of a split, in the order in which they were prepared.

    Args:
        directory: Path or URL of the data directory.
        split: Its name.
        cache: See SplitReader.

    Attributes:
        directory, split: As given.
        name: Of split and directory, for errors.
        shards: Entries of the index.
        shard_ends: Tokens up to the end of each shard, int64 [shards].
        num_tokens: Of all shards.
        tokenizer_entry: Of the index; from it vocab_size, tokenizer_hash (sha256), bos_id (None: documents begin with their
            text) and eos_id.
        unigram_entropy: Nats per token.
        answers: Entry of the index; None: whole documents are learned.
        fingerprint: sha256 over the content of the split and its tokenizer.

    Raises:
        UserError, FileNotFoundError: The data directory is missing or corrupted.
    """

    def __init__(self, directory: str | Path, split: str, cache: CacheFolder | None = None) -> None:
        if split not in SPLITS:
            raise UserError(f"split is {split!r}: {choose_one(split, SPLITS)}")
        self.directory = str(directory)
        self.split = split
        self.name = f"split {split} of {directory}"
        self._folder = open_folder(directory, cache)
        self._index = index = load_index(self._folder.directory)
        content = index.splits[split]
        entry = index.tokenizer
        self.shards = content.shards
        self.num_tokens = content.tokens
        self.unigram_entropy = content.unigram_entropy
        self.tokenizer_entry = entry
        self.tokenizer_hash = entry.sha256
        self.vocab_size = entry.vocab_size
        self.bos_id = entry.bos_id
        self.eos_id = entry.eos_id
        self.answers = index.answers.get(split)
        self.fingerprint = index.fingerprint(split)
        self._reader = SplitReader(self._folder.origin, index, split, cache)
        self.shard_ends = np.cumsum([shard.tokens for shard in content.shards], dtype=np.int64)
        self._starts = [0, *self.shard_ends.tolist()]

    @property
    def index(self) -> Index:
        """Index of the data directory."""
        return self._index

    def stream(self, begin: int, end: int) -> np.ndarray:
        """Tokens [begin, end) of the split, int64. Raises IndexError outside of it."""
        if not 0 <= begin <= end <= self.num_tokens:
            raise IndexError(f"tokens {begin} to {end} of {self.num_tokens}")
        shard = bisect_right(self._starts, begin) - 1
        parts = []
        while begin < end:
            last = min(end, self._starts[shard + 1])
            parts.append(self._reader.read(shard, begin - self._starts[shard], last - self._starts[shard]))
            begin = last
            shard = shard + 1
        return parts[0].astype(np.int64) if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])

    def expect(self, shards: Sequence[int]) -> None:
        """Announce the shards that are read next, by number: those at a URL are copied ahead."""
        self._reader.expect(shards)

    def document(self, number: int) -> np.ndarray:
        """Tokens of a document by its number in the split, int64. Raises UserError if the folder has no tables of documents."""
        return self.stream(*self.tables.span(number))

    @property
    def has_tables(self) -> bool:
        """Whether the folder has tables of the split's documents."""
        return bool(self._index.document_tables.get(self.split))

    @cached_property
    def tables(self) -> "DocumentTables":
        """The tables of its documents. Raises UserError if the folder has none."""
        self._folder.fetch(*(table.file for table in self._index.document_tables.get(self.split, ())))
        return DocumentTables(self._folder.directory, self._index, self.split)

    def document_lengths(self) -> Iterator[np.ndarray]:
        """The tokens of each document in order, int64, some at a time: from the folder's tables, or by reading the split."""
        return self.tables.lengths() if self.has_tables else lengths_by_end(self._reader.members(), self.eos_id)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the data.

        Raises:
            UserError, FileNotFoundError: Its files are not those that the index lists, or the index has other ids of special
                tokens, with which documents would begin and end elsewhere.
        """
        entry = self.tokenizer_entry
        self._folder.fetch(*entry.files)
        tokenizer = stored_tokenizer(self._folder.directory, entry.files)
        for name in ("vocab_size", "bos_id", "eos_id"):
            if (recorded := getattr(entry, name)) != (found := getattr(tokenizer, name)):
                raise UserError(
                    f"{self._folder.origin}/{INDEX_FILE}: corrupted, {name} is {recorded}, but {found} by {entry.file}: copy "
                    "it again or re-run the preparation"
                )
        return tokenizer


@dataclass(frozen=True)
class DocumentMatch:
    """The document to which a token belongs.

    Attributes:
        number: Its number in the split, from 0.
        first: Its first token in the split's stream.
        tokens: Number of its tokens.
        bytes: Size of its text in UTF-8.
        place: Place in the source.
        url: Address at which the source found it, or empty.
        hash: Of its text, as writer.py has it; None in tables of earlier versions.
        scores: Its scores by cleaning rules, as JSON; empty without such rules.
    """

    number: int
    first: int
    tokens: int
    bytes: int
    place: str
    url: str
    hash: int | None = None
    scores: str = ""


class DocumentTables:
    """The tables of one split. Raises UserError if the folder has none, or if they do not fit the split's tokens."""

    def __init__(self, directory: Path, index: Index, split: str) -> None:
        if split not in index.document_tables:
            raise UserError(
                f"{directory} has no tables of documents: `megatape prepare corpus` writes them, prepare the data again"
            )
        self._directory = directory
        self._name = f"the {split} split of {directory}"
        self._tables = index.document_tables[split]
        self._first_tokens = [0, *accumulate(table.tokens for table in self._tables)]  # of each table, and of what follows
        self._first_documents = [0, *accumulate(table.documents for table in self._tables)]
        self._opened = lru_cache(TABLES_KEPT)(self._read)
        self._is_isolated = False
        if self._first_tokens[-1] != index.splits[split].tokens:
            raise UserError(
                f"{directory}: the documents in the tables of {split} have {self._first_tokens[-1]:,} tokens, its members "
                f"{index.splits[split].tokens:,}: prepare it again"
            )

    def isolate(self) -> Self:
        """Verify each table in a child process first, for untrusted directories. Returns the tables."""
        self._is_isolated = True
        return self

    def lengths(self) -> Iterator[np.ndarray]:
        """The tokens of each document in order, int64, some thousand documents at a time."""
        for table in self._tables:
            num_tokens = 0
            for part in _column(self._open(table), "tokens"):
                num_tokens += int(part.sum())
                yield part
            if num_tokens != table.tokens:
                raise self._differs(table)

    def hashes(self) -> Iterator[np.ndarray]:
        """Hashes of the documents' texts in order, uint64, some thousand at a time. Raises UserError if a table lacks them."""
        for table in self._tables:
            file = self._open(table)
            if "hash" not in file.names:
                raise UserError(
                    f"{self._directory}: {table.file} has no hashes of documents, which earlier versions did not write: "
                    "prepare the folder again with this version"
                )
            yield from _column(file, "hash")

    def domains(self, count: int) -> list[dict[str, Any]]:
        """The domains with the most documents: domain without `www.`, documents, tokens. Documents without URL do not count."""
        from pyarrow import Table, compute

        names = ["domain", "tokens", "documents"]
        parts = list[Table]()
        for table in self._tables:
            rows = self._open(table).read(["url", "tokens"])
            found = compute.extract_regex(compute.utf8_lower(rows["url"]), DOMAIN)
            part = Table.from_arrays([compute.struct_field(found, "domain"), rows["tokens"], np.ones(len(rows), int)], names)
            parts = [_summed([*parts, part.drop_null()], names)]
        order = [("documents", "descending"), ("domain", "ascending")]
        return [row for total in parts for row in total.sort_by(order)[:count].to_pylist()]

    def each(self) -> Iterator[tuple["Table", np.ndarray]]:
        """Each table in order, and the first tokens of its documents and of what follows them, in the split's stream, int64.

        Raises FileNotFoundError or UserError if a table is not what the index lists.
        """
        for file, firsts in map(self._read, range(len(self._tables))):
            yield file.read(), firsts

    def find(self, token: int) -> DocumentMatch:
        """The document to which a token of the split belongs. Raises UserError if there is no such token."""
        self._check("token", token, self._first_tokens[-1])
        table = bisect_right(self._first_tokens, token) - 1
        _, firsts = self._opened(table)
        return self.document(self._first_documents[table] + int(firsts.searchsorted(token, side="right")) - 1)

    def document(self, number: int) -> DocumentMatch:
        """A document by its number in the split. Raises UserError if there is no such document."""
        first, _ = self.span(number)
        table = bisect_right(self._first_documents, number) - 1
        file, _ = self._opened(table)
        return DocumentMatch(number, first, **file.read().slice(number - self._first_documents[table], 1).to_pylist()[0])

    def span(self, number: int) -> tuple[int, int]:
        """First token of a document in the split's stream, and the one after its last. Raises as `document` does."""
        self._check("document", number, self._first_documents[-1])
        table = bisect_right(self._first_documents, number) - 1
        _, firsts = self._opened(table)
        row = number - self._first_documents[table]
        return firsts.item(row), firsts.item(row + 1)

    def places(self, tokens: np.ndarray) -> list[str]:
        """Return the place in the source of each token's document.

        Args:
            tokens: Indices of tokens in the split's stream, int64 [n].

        Raises:
            FileNotFoundError, UserError: A table with one of the documents is missing or corrupted.
        """
        places = [""] * tokens.size
        numbers = np.searchsorted(self._first_tokens, tokens, side="right") - 1
        for number in np.unique(numbers).tolist():
            file, firsts = self._read(number)
            (wanted,) = np.nonzero(numbers == number)
            rows = firsts.searchsorted(tokens[wanted], side="right") - 1
            column = file.read(["place"])["place"].take(rows).to_pylist()
            for token, place in zip(wanted.tolist(), column, strict=True):
                places[token] = place
        return places

    def _check(self, kind: str, number: int, count: int) -> None:
        if not 0 <= number < count:
            raise UserError(f"{kind} {number:,}: {self._name} has {kind}s 0 to {count - 1:,}")

    def _read(self, number: int) -> tuple[TableFile, np.ndarray]:
        """Return a table, and the first token of each document and the end of the last one in the split's stream, int64."""
        table = self._tables[number]
        file = self._open(self._tables[number])
        firsts = np.cumsum(np.concatenate([[self._first_tokens[number]], *_column(file, "tokens")]))
        if (firsts.size, firsts[-1]) != (table.documents + 1, self._first_tokens[number + 1]):
            raise self._differs(table)
        return file, firsts

    def _open(self, table: DocumentTable) -> TableFile:
        """Open a table. Raises FileNotFoundError, or UserError if it is corrupted or not the file that the index lists."""
        path = self._directory / table.file
        check_file(path, table.sha256)
        if self._is_isolated:
            verify_table(path)
        file = TableFile(path)
        if file.num_rows != table.documents:
            raise self._differs(table)
        return file

    def _differs(self, table: DocumentTable) -> UserError:
        """Return the error about a table whose documents differ from the index."""
        return UserError(f"{self._directory}: corrupted, {table.file} has other documents than the index: prepare it again")


def lengths_by_end(members: Iterable[np.ndarray], eos_id: int) -> Iterator[np.ndarray]:
    """The tokens of each document of a split without tables, as `lengths` has them: a document ends with its end token.

    members: token ids of all members, in order.
    """
    begun = 0  # tokens of a document that goes on in the next member
    for ids in members:
        ends = np.flatnonzero(ids == eos_id) + 1 + begun
        yield np.diff(ends, prepend=0)
        begun += ids.size - int(ends[-1] if ends.size else 0)


def _summed(tables: list["Table"], names: list[str]) -> "Table":
    """Tables with one row for each value of the first column, in which the others are summed."""
    from pyarrow import concat_tables

    sums = concat_tables(tables).group_by(names[0]).aggregate([(name, "sum") for name in names[1:]])
    return sums.select([names[0], *(f"{name}_sum" for name in names[1:])]).rename_columns(names)


def _column(file: TableFile, name: str) -> Iterator[np.ndarray]:
    """A column of numbers, some thousand documents at a time."""
    return (rows[name].to_numpy() for rows in file.iter_batches(ROWS, columns=[name]))

"""Writes splits: tar shards of token ids, and tables of their documents.

A shard is a WebDataset tar (layout.py), whose members are flat runs of token ids, across document boundaries. A table is a
Parquet file beside the shards, compressed by zstd, with a row for each document in the order of the split's tokens:

    tokens  int64   of the document, control tokens included: those before it are the tokens of all rows before
    bytes   int64   of its text, in UTF-8
    place   string  in the source, such as `file:line`
    url     string  where the source found it, or empty
    hash    uint64  of its text: 64 bits of BLAKE2b, by which `distinct` finds it again; earlier versions lack the column
    scores  string  an object of JSON with its score by each cleaning rule that gives one; without such rules there is no column

Equal documents give equal bytes, by one version of pyarrow.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash

from megatape.data.document_entries import DocumentTable
from megatape.data.shards.index import Shard, Split, file_sha256, token_dtype
from megatape.data.shards.layout import BLOCK, CHECKSUMS, NPY_HEADER, checksums
from megatape.errors import UserError
from megatape.utils.files import create_file

MEMBER_TOKENS = 524_288
MEMBERS_PER_SHARD = 128  # 128 MiB at two bytes per token
ROWS = 2**14  # of a table in a group, which is what a writer holds in memory


def document_hash(content: bytes) -> bytes:
    """16 bytes, different for different contents: by BLAKE2b, for which nobody finds an equal one, and by XXH3."""
    return hashlib.blake2b(content, digest_size=8).digest() + xxhash.xxh3_64_digest(content)


def table_hashes(digests: Sequence[bytes]) -> list[int]:
    """The parts of documents' hashes that their rows in the table keep."""
    return np.frombuffer(b"".join(digests), "<u8")[::2].tolist()


def splits_of(hashes: Sequence[int], validation_share: float) -> list[str]:
    """The splits of documents, by their `table_hashes` alone: equal ones are in one, in any order and from any source."""
    end = validation_share * 2**64
    return ["validation" if number < end else "train" for number in hashes]


def split_of(content: bytes, validation_share: float) -> str:
    """The split of a document, by its content alone."""
    return splits_of(table_hashes([document_hash(content)]), validation_share)[0]


@dataclass
class SplitWriter:
    """Collects the token ids of a split and writes `{name}-000000.tar`, ... into `directory`.

    Equal ids give equal bytes.

    name: of the split, or of a part of it that no other part has. token_counts: how often each token occurs, int64
    [vocab_size], once the writer is closed.
    """

    directory: Path
    name: str
    vocab_size: int
    eos_id: int
    _: KW_ONLY
    member_tokens: int = MEMBER_TOKENS
    members_per_shard: int = MEMBERS_PER_SHARD

    def __post_init__(self) -> None:
        self._buffer = np.empty(self.member_tokens, token_dtype(self.vocab_size))
        self._filled = 0  # tokens in the buffer
        self._shards: list[Shard] = []
        self._tar = _ShardTar()
        self.token_counts = np.zeros(self.vocab_size, np.int64)
        self._text_bytes = 0

    def add(self, ids: np.ndarray, text_bytes: int) -> None:
        """Appends the ids of one document, control tokens included. text_bytes: the UTF-8 size of its text.

        Raises UserError for an id outside the vocabulary.
        """
        if ids.size and not 0 <= ids.min() <= ids.max() < self.vocab_size:
            raise UserError(
                f"token ids {ids.min()}..{ids.max()} do not fit vocab_size {self.vocab_size} "
                f"({self._buffer.dtype.name}): prepare with the tokenizer that made them"
            )
        self._text_bytes += text_bytes
        while ids.size:
            taken = min(ids.size, self._buffer.size - self._filled)
            self._buffer[self._filled : self._filled + taken] = ids[:taken]
            self._filled += taken
            ids = ids[taken:]
            if self._filled == self._buffer.size:
                self._finish_member()

    def close(self) -> Split:
        """Writes the rest and returns the split's part of the index."""
        if self._filled:
            self._finish_member()
        if self._tar.members:
            self._write_shard()
        return Split(
            documents=sum(shard.documents for shard in self._shards),
            tokens=sum(shard.tokens for shard in self._shards),
            text_bytes=self._text_bytes,
            unigram_entropy=entropy(self.token_counts),
            shards=self._shards,
        )

    def _finish_member(self) -> None:
        ids = self._buffer[: self._filled]
        self._filled = 0
        self.token_counts += np.bincount(ids, minlength=self.vocab_size)
        number = len(self._shards) * self.members_per_shard + self._tar.members
        self._tar.add(f"{self.name}-{number:08d}.npy", ids, int(np.count_nonzero(ids == self.eos_id)))
        if self._tar.members == self.members_per_shard:
            self._write_shard()

    def _write_shard(self) -> None:
        path = self.directory / f"{self.name}-{len(self._shards):06d}.tar"
        tar = self._tar
        self._tar = _ShardTar()
        sha256 = tar.finish()
        with create_file(path) as file:
            file.write(tar.content.getbuffer())
        size = tar.content.tell()
        self._shards.append(Shard(path.name, size, tar.tokens, tar.documents, self._buffer.size, sha256))


class _ShardTar:
    """A shard, in memory. webdataset has a writer, whose import takes seconds, since it imports torch.

    Attributes:
        content: Of its file.
        members, tokens, documents: Their numbers.
    """

    def __init__(self) -> None:
        self.content = io.BytesIO()
        self.members = self.tokens = self.documents = 0

    def add(self, name: str, ids: np.ndarray, documents: int) -> None:
        """Append a member."""
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(ids))
        assert header.tell() == NPY_HEADER, "layout.py relies on it"
        self._append(name, header.getvalue(), ids.data.cast("B"))
        self.members = self.members + 1
        self.tokens = self.tokens + ids.size
        self.documents = self.documents + documents

    def finish(self) -> str:
        """Append checksums and the end. Returns the sha256 of what is before them."""
        with self.content.getbuffer() as covered:
            sha256 = hashlib.sha256(covered).hexdigest()
            sums = checksums(covered, sha256)
        self._append(CHECKSUMS, sums)
        self.content.write(bytes(2 * BLOCK))
        return sha256

    def _append(self, name: str, *parts: bytes | memoryview) -> None:
        entry = tarfile.TarInfo(name)  # without time and user, so that equal ids give equal bytes
        entry.size = sum(map(len, parts))
        self.content.writelines([entry.tobuf(tarfile.USTAR_FORMAT), *parts, bytes(-entry.size % BLOCK)])


class TableWriter:
    """Writes the table `{name}-documents.parquet` into `directory`, unless there are no documents.

    name: of the split, or of a part of it that no other part has.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._path = directory / f"{name}-documents.parquet"
        self._columns: list[list[Any]] = [[], [], [], [], [], []]
        self._writer: Any = None  # a ParquetWriter
        self._file: IO[bytes] | None = None
        self._num_documents = self._num_tokens = 0

    def add(self, tokens: Sequence[int], *others: Sequence[Any]) -> None:
        """Append documents by the columns of the table. Scores are mappings, empty for all documents or for none."""
        *columns, scores = tokens, *others
        rows = [json.dumps(of_document) for of_document in scores if of_document]
        for column, values in zip(self._columns, (*columns, rows), strict=True):
            column += values
        self._num_documents += len(tokens)
        self._num_tokens += sum(tokens)
        while len(self._columns[0]) >= ROWS:
            self._write()

    def close(self) -> list[DocumentTable]:
        """Write the rest. Returns the table's part of the index: none without documents."""
        if self._columns[0]:
            self._write()
        if self._writer is None:
            return []
        self._writer.close()
        assert self._file is not None
        self._file.close()
        return [DocumentTable(self._path.name, file_sha256(self._path), self._num_documents, self._num_tokens)]

    def _write(self) -> None:
        import pyarrow  # takes a third of a second to import, and only this needs it
        from pyarrow.parquet import ParquetWriter

        integer = pyarrow.int64()
        string = pyarrow.string()
        bits = pyarrow.uint64()
        names = ("tokens", integer), ("bytes", integer), ("place", string), ("url", string), ("hash", bits), ("scores", string)
        columns = [_arrow_array(column[:ROWS], kind) for column, (_, kind) in zip(self._columns, names, strict=True) if column]
        schema = pyarrow.schema(names[: len(columns)])
        if self._writer is None:
            self._file = create_file(self._path)
            self._writer = ParquetWriter(self._file, schema, compression="zstd", use_dictionary=False, write_statistics=False)
        self._writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))
        for column in self._columns:
            del column[:ROWS]


def _arrow_array(values: list[Any], kind: Any) -> Any:
    """Values as an array of pyarrow, without `pyarrow.array`, which imports pandas and so takes half a second."""
    import pyarrow

    if kind == pyarrow.string():
        builder = pyarrow.lib.StringBuilder()
        builder.append_values(values)
        return builder.finish()
    return pyarrow.Array.from_buffers(kind, len(values), [None, pyarrow.py_buffer(np.array(values, str(kind)))])


def entropy(counts: np.ndarray) -> float:
    """Entropy in nats of the distribution with these counts; 0 without any."""
    share = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(share * np.log(share)).sum())

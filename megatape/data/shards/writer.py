"""Writes token ids into shards.

A shard is a WebDataset tar (layout.py). Its members are flat arrays of token ids, crossing document boundaries.
"""

import hashlib
import io
import tarfile
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import numpy as np

from megatape.data.shards.entries import Shard, Split, token_dtype
from megatape.data.shards.layout import CHECKSUMS, NPY_HEADER_BYTES, TAR_BLOCK_BYTES, checksums
from megatape.errors import UserError
from megatape.utils.files.files import create_file

MEMBER_TOKENS = 524_288
# 128 MiB at two bytes per token.
MEMBERS_PER_SHARD = 128


@dataclass
class SplitWriter:
    """Writes the token ids of a split to `{name}-000000.tar`, ... Equal ids give equal bytes.

    Attributes:
        directory: Folder for the shards.
        name: Name of the split, or a unique name for a part of it.
        vocab_size: Largest allowed id plus one.
        eos_id: Token ending documents.
        member_tokens: Ids per member.
        members_per_shard: Members per shard.
        token_counts: Occurrences of each token, int64 [vocab_size]. Complete after closing the writer.
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
        self._num_buffered = 0
        self._shards: list[Shard] = []
        self._tar = _ShardTar()
        self.token_counts = np.zeros(self.vocab_size, np.int64)
        self._text_bytes = 0

    def add(self, ids: np.ndarray, text_bytes: int) -> None:
        """Append documents.

        Args:
            ids: Token ids, including control tokens, [tokens].
            text_bytes: Size of the texts in UTF-8.

        Raises:
            UserError: An id is outside the vocabulary.
        """
        if ids.size and not 0 <= ids.min() <= ids.max() < self.vocab_size:
            raise UserError(
                f"token ids {ids.min()}..{ids.max()} do not fit vocab_size {self.vocab_size} "
                f"({self._buffer.dtype.name}): prepare with the tokenizer that made them"
            )
        self._text_bytes += text_bytes
        while ids.size:
            num_free = self._buffer.size - self._num_buffered
            num_taken = min(ids.size, num_free)
            self._buffer[self._num_buffered : self._num_buffered + num_taken] = ids[:num_taken]
            self._num_buffered += num_taken
            ids = ids[num_taken:]
            if self._num_buffered == self._buffer.size:
                self._finish_member()

    def close(self) -> Split:
        """Write the remaining ids. Returns the split's index entry."""
        if self._num_buffered:
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
        ids = self._buffer[: self._num_buffered]
        self._num_buffered = 0
        self.token_counts += np.bincount(ids, minlength=self.vocab_size)
        number = len(self._shards) * self.members_per_shard + self._tar.members
        num_documents = int(np.count_nonzero(ids == self.eos_id))
        self._tar.add(f"{self.name}-{number:08d}.npy", ids, num_documents)
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
    """Shard being built in memory. webdataset's writer is not used, because importing it imports torch, which takes seconds.

    Attributes:
        content: File content.
        members: Members so far.
        tokens: Token ids so far.
        documents: Documents ending in the shard.
    """

    def __init__(self) -> None:
        self.content = io.BytesIO()
        self.members = 0
        self.tokens = 0
        self.documents = 0

    def add(self, name: str, ids: np.ndarray, documents: int) -> None:
        """Append a member."""
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(ids))
        assert header.tell() == NPY_HEADER_BYTES, "layout.py relies on it"
        self._append(name, header.getvalue(), ids.data.cast("B"))
        self.members += 1
        self.tokens += ids.size
        self.documents += documents

    def finish(self) -> str:
        """Append the checksums and the end of the tar. Returns the sha256 of the members."""
        with self.content.getbuffer() as covered:
            sha256 = hashlib.sha256(covered).hexdigest()
            checksum_bytes = checksums(covered, sha256)
        self._append(CHECKSUMS, checksum_bytes)
        self.content.write(bytes(2 * TAR_BLOCK_BYTES))
        return sha256

    def _append(self, name: str, *parts: bytes | memoryview) -> None:
        # Time and user are omitted, so that equal ids give equal bytes.
        entry = tarfile.TarInfo(name)
        entry.size = sum(map(len, parts))
        padding = bytes(-entry.size % TAR_BLOCK_BYTES)
        self.content.writelines([entry.tobuf(tarfile.USTAR_FORMAT), *parts, padding])


def entropy(counts: np.ndarray) -> float:
    """Return a distribution's entropy in nats, given as counts; 0 if all counts are 0."""
    probabilities = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(probabilities * np.log(probabilities)).sum())

"""Writes one split as WebDataset tar shards, whose members are flat runs of token ids, across document boundaries."""

import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np

from megatape.data.shards.index import Member, Shard, Split, token_dtype
from megatape.errors import UserError

MEMBER_TOKENS = 524_288
MEMBERS_PER_SHARD = 128  # 128 MiB at two bytes per token


class SplitWriter:
    """Collects the token ids of a split and writes `{name}-000000.tar`, ... into `directory`.

    Equal ids give equal bytes.

    name: of the split, or of a part of it that no other part has. token_counts: how often each token occurs, int64
    [vocab_size], once the writer is closed.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        vocab_size: int,
        eos_id: int,
        *,
        member_tokens: int = MEMBER_TOKENS,
        members_per_shard: int = MEMBERS_PER_SHARD,
    ):
        self._directory = directory
        self._name = name
        self._vocab_size = vocab_size
        self._eos_id = eos_id
        self._members_per_shard = members_per_shard
        self._buffer = np.empty(member_tokens, token_dtype(vocab_size))
        self._filled = 0  # tokens in the buffer
        self._pending: list[np.ndarray] = []  # complete members of the next shard
        self._shards: list[Shard] = []
        self.token_counts = np.zeros(vocab_size, np.int64)
        self._text_bytes = 0

    def add(self, ids: np.ndarray, text_bytes: int) -> None:
        """Appends the ids of one document, control tokens included. text_bytes: the UTF-8 size of its text.

        Raises UserError for an id outside the vocabulary.
        """
        if ids.size and not 0 <= ids.min() <= ids.max() < self._vocab_size:
            raise UserError(
                f"token ids {ids.min()}..{ids.max()} do not fit vocab_size {self._vocab_size} "
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
        if self._pending:
            self._write_shard()
        members = [member for shard in self._shards for member in shard.members]
        return Split(
            documents=sum(member.documents for member in members),
            tokens=sum(member.tokens for member in members),
            text_bytes=self._text_bytes,
            unigram_entropy=entropy(self.token_counts),
            shards=self._shards,
        )

    def _finish_member(self) -> None:
        ids = self._buffer[: self._filled].copy()
        self._filled = 0
        self.token_counts += np.bincount(ids, minlength=self._vocab_size)
        self._pending.append(ids)
        if len(self._pending) == self._members_per_shard:
            self._write_shard()

    def _write_shard(self) -> None:
        from webdataset import TarWriter  # imports torch, which reading does not need

        path = self._directory / f"{self._name}-{len(self._shards):06d}.tar"
        first = len(self._shards) * self._members_per_shard
        files = [_npy(ids) for ids in self._pending]
        # An integer mtime: a float would make the tar larger, the present time different in every run.
        with open(path, "wb") as stream:
            with TarWriter(stream, encoder=False, mtime=0) as tar:
                for number, content in enumerate(files):
                    tar.write({"__key__": f"{self._name}-{first + number:08d}", "npy": content})
            size = stream.tell()
        with tarfile.open(path) as tar:
            offsets = [entry.offset_data for entry in tar]
        members = [
            Member(
                offset=offset,
                bytes=len(content),
                tokens=ids.size,
                documents=int(np.count_nonzero(ids == self._eos_id)),
                sha256=hashlib.sha256(content).hexdigest(),
            )
            for offset, content, ids in zip(offsets, files, self._pending, strict=True)
        ]
        self._shards.append(Shard(path.name, size, members))
        self._pending = []


def _npy(ids: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, ids, version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def entropy(counts: np.ndarray) -> float:
    """Entropy in nats of the distribution with these counts; 0 without any."""
    share = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(share * np.log(share)).sum())

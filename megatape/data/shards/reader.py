"""Reads token ids from the members of one split. Nothing is extracted, unpickled or mapped.

Reading a mapped file that was truncated meanwhile would kill the process (SIGBUS), and one that was overwritten would give
other tokens. So what is read was verified in the state that its file has now: a member is hashed when it is first read, and
again once its file has changed.
"""

import hashlib
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from megatape.data.io.remote import is_url, open_file
from megatape.data.shards.cache import CacheFolder, ShardCache
from megatape.data.shards.index import Index, Member, Shard, token_dtype
from megatape.errors import MissingPath, UserError
from megatape.files import retry_transient_errors

LOG = logging.getLogger(__name__)

MAX_OPEN_SHARDS = 256  # a process often has only 1024 descriptors
REMEDY = "copy the shard again or re-run the preparation"

State = tuple[int, ...]


class ShardFile:
    """An open shard, which is closed when nothing refers to it any more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def state(self) -> State:
        """Numbers that differ if the content does: which file it is, its size, when content and attributes changed.

        Copying tools set the former time back, never the latter.
        """
        status = os.fstat(self._descriptor)
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def removed(self) -> bool:
        """Whether the file has no name any more: what it takes on the disk is free when it is closed."""
        return os.fstat(self._descriptor).st_nlink == 0

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset` on; fewer if the file ends before."""
        parts = []
        while size and (part := os.pread(self._descriptor, size, offset)):
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class SplitReader:
    """The members of one split.

    directory: path or URL of the data directory; a URL needs a cache. cache: on this node's disk, to which shards are copied
    when first needed, and from which they are read.
    Raises FileNotFoundError if a shard is missing, and UserError if its size differs from the index. Shards at a URL are
    looked for when they are copied.
    """

    def __init__(self, directory: str | Path, index: Index, split: str, cache: CacheFolder | None = None):
        self._directory = str(directory)
        self._cache = None if cache is None else ShardCache(cache, self._directory, index)
        self._vocab_size = index.tokenizer.vocab_size
        self._dtype = token_dtype(self._vocab_size)
        self._shards = index.splits[split].shards
        if not is_url(self._directory):
            for shard in self._shards:
                self._check_size(shard)
        self._members = [
            (number, position) for number, shard in enumerate(self._shards) for position in range(len(shard.members))
        ]
        self._open: dict[int, ShardFile] = {}  # by shard, the most recently used last
        self._verified: dict[int, tuple[State, set[int]]] = {}  # by shard: positions of members verified in this state

    def __len__(self) -> int:
        return len(self._members)

    def member(self, number: int, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Token ids [begin, end) of member `number` of the split, by default all.

        Raises UserError if the member differs from the index, OSError if it cannot be read.
        """
        shard_number, position = self._members[number]
        return retry_transient_errors(lambda: self._ids(shard_number, position, begin, end))

    def expect(self, shards: Sequence[int]) -> None:
        """Say which shards are needed soon, by number: those at a URL are copied ahead."""
        if self._cache is not None:
            self._cache.expect([self._shards[number] for number in shards])

    def _ids(self, shard_number: int, position: int, begin: int, end: int | None) -> np.ndarray:
        member = self._shards[shard_number].members[position]
        end = member.tokens if end is None else end
        try:
            file = self._file(shard_number)
            state = file.state()
            verified_state, verified = self._verified.get(shard_number, (None, set()))
            if state == verified_state and position in verified:
                size = (end - begin) * self._dtype.itemsize
                content = file.read(self._first_id(member) + begin * self._dtype.itemsize, size)
                if len(content) == size and file.state() == state:
                    return np.frombuffer(content, self._dtype)
            file, state, ids = self._verify(shard_number, position)
        except OSError:
            self._open.pop(shard_number, None)  # the next attempt opens the file again
            raise
        if state != self._verified.get(shard_number, (None,))[0]:
            self._verified[shard_number] = state, set()
        self._verified[shard_number][1].add(position)
        return ids[begin:end]

    def _verify(self, shard_number: int, position: int) -> tuple[ShardFile, State, np.ndarray]:
        """All ids of a member, the file they came from and its state before reading. A corrupted copy is replaced once."""
        shard = self._shards[shard_number]
        member, original = shard.members[position], f"{self._directory}/{shard.file}"
        for is_last in (False, True):
            file = self._file(shard_number)
            state = file.state()
            content = file.read(member.offset, member.bytes)
            fault = self._fault(member, content)
            if fault is None:
                return file, state, np.frombuffer(content, self._dtype, member.tokens, self._first_id(member) - member.offset)
            if self._cache is None:
                break
            if not is_last:
                LOG.warning(
                    f"warning: {file.path} member {position}: {fault}. This copy is removed and {original} copied again"
                )
            self._cache.remove(shard, state[0])
            del self._open[shard_number]
        if self._cache is not None and self._fault(member, self._original(original, member)) is None:
            raise UserError(
                f"{file.path} member {position}: {fault}, twice, though {original} is right: the disk of data.cache "
                "corrupts what it stores, choose another one"
            )
        raise UserError(f"{original} member {position}: {fault}: {REMEDY}")

    def _original(self, name: str, member: Member) -> bytes:
        with open_file(name) as file:
            file.seek(member.offset)
            return file.read(member.bytes)

    def _fault(self, member: Member, content: bytes) -> str | None:
        """Fault of the content of a member, None if there is none."""
        if len(content) < member.bytes:
            return f"truncated, {len(content)} of its {member.bytes} bytes at offset {member.offset} are there"
        found = hashlib.sha256(content).hexdigest()
        if found != member.sha256:
            return f"corrupted, sha256 is {found}, the index says {member.sha256}"
        highest = np.frombuffer(content, self._dtype, member.tokens, self._first_id(member) - member.offset).max()
        if highest >= self._vocab_size:
            return f"corrupted, token id {highest}, vocab_size is {self._vocab_size}"
        return None

    def _first_id(self, member: Member) -> int:
        """Offset in the shard of a member's first token id, which is after the .npy header."""
        return member.offset + member.bytes - member.tokens * self._dtype.itemsize

    def _check_size(self, shard: Shard) -> None:
        path = Path(self._directory) / shard.file
        if not path.is_file():
            raise MissingPath(f"{path}: shard not found, the index lists it with {shard.bytes} bytes: {REMEDY}")
        if path.stat().st_size != shard.bytes:
            raise UserError(
                f"{path}: shard of {path.stat().st_size} bytes, the index says {shard.bytes} "
                f"({len(shard.members)} members): {REMEDY}"
            )

    def _copy(self, cache: ShardCache, shard: Shard) -> ShardFile:
        while True:  # another rank may make room where the copy is, before it is opened
            path = cache.local(shard)
            with suppress(FileNotFoundError):
                return ShardFile(path)

    def _file(self, shard_number: int) -> ShardFile:
        """The shard, or its copy in the cache, among the MAX_OPEN_SHARDS that were used last."""
        file = self._open.pop(shard_number, None)
        if file is None:
            shard = self._shards[shard_number]
            if self._cache is None:
                self._check_size(shard)
                file = ShardFile(Path(self._directory) / shard.file)
            else:
                self._open = {number: other for number, other in self._open.items() if not other.removed()}
                file = self._copy(self._cache, shard)
        self._open[shard_number] = file
        if len(self._open) > MAX_OPEN_SHARDS:
            del self._open[next(iter(self._open))]
        return file

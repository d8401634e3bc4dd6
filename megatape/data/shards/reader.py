"""Reads token ids of one split, verified whenever they are read. Nothing is extracted, unpickled or mapped.

Reading a mapped file that was truncated meanwhile would kill the process (SIGBUS), and one that was overwritten would give
other tokens. Nothing is remembered of earlier reads, so a shard that changes while it is open is noticed by the read that meets
the change.
"""

import hashlib
import logging
import os
import resource
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache as once
from functools import partial
from pathlib import Path
from typing import BinaryIO, ClassVar
from weakref import WeakSet

import numpy as np

from megatape.data.io.remote import is_url, open_file
from megatape.data.shards.cache import CacheFolder, ShardCache
from megatape.data.shards.index import Index, Shard, token_dtype
from megatape.data.shards.layout import BLOCK, CHECKSUM, CHUNK, NPY_HEADER, checksums, covered_bytes, first_id
from megatape.errors import MissingPath, UserError
from megatape.utils.files import retry_transient_errors

LOG = logging.getLogger(__name__)

MEMBERS_KEPT = 64  # of an earlier version, verified, in memory: 64 MiB
MAX_DESCRIPTORS = 2**20  # that a process asks for, if its hard limit allows them
REMEDY = "copy the shard again or re-run the preparation"

Report = Callable[[int], object]  # called again and again with the number of tokens that were done since
Read = Callable[[int, int], bytes]  # of so many bytes from an offset of a shard on; fewer if it ends before


class Corrupted(Exception):
    """What was read is not what the index lists; its text says what is wrong with it."""


class Verifier:
    """Reads ids of the shards of a data directory: the chunks that have them, and their checksums."""

    def __init__(self, index: Index) -> None:
        self._vocab_size = index.tokenizer.vocab_size
        self._dtype = token_dtype(self._vocab_size)

    def ids(self, shard: Shard, member: int, begin: int, end: int, read: Read) -> np.ndarray:
        """Ids [begin, end) of a member. Raises Corrupted, and OSError of `read`."""
        itemsize = self._dtype.itemsize
        covered = covered_bytes(shard.tokens, shard.member_tokens, itemsize)
        offset = first_id(member, shard.member_tokens, itemsize) + begin * itemsize
        # chunks, the last one excluded
        first = offset // CHUNK
        last = -((offset + (end - begin) * itemsize) // -CHUNK)
        start = first * CHUNK
        content = exactly(read, start, min(last * CHUNK, covered) - start)
        if checksums(content, shard.sha256) != exactly(read, covered + BLOCK + first * CHECKSUM, (last - first) * CHECKSUM):
            raise Corrupted(f"corrupted, bytes {start:,} to {start + len(content) - 1:,} do not have their checksums")
        return self._checked(np.frombuffer(content, self._dtype, end - begin, offset - start))

    def _checked(self, ids: np.ndarray) -> np.ndarray:
        if (highest := np.maximum.reduce(ids)) >= self._vocab_size:  # ids.max() takes half a microsecond more
            raise Corrupted(f"corrupted, token id {highest}, vocab_size is {self._vocab_size}")
        return ids


class MemberVerifier(Verifier):
    """Reads whole members of an earlier version, which has no checksums, and keeps the last ones."""

    def __init__(self, index: Index, hashes: dict[str, list[str]]) -> None:
        super().__init__(index)
        self._hashes = hashes
        self._kept: dict[tuple[str, int], np.ndarray] = {}  # the one that was used last is the last

    def ids(self, shard: Shard, member: int, begin: int, end: int, read: Read) -> np.ndarray:
        key = shard.file, member
        if (ids := self._kept.pop(key, None)) is None:
            tokens = min(shard.member_tokens, shard.tokens - member * shard.member_tokens)
            offset = first_id(member, shard.member_tokens, self._dtype.itemsize) - NPY_HEADER
            content = exactly(read, offset, NPY_HEADER + tokens * self._dtype.itemsize)
            found = hashlib.sha256(content).hexdigest()
            expected = self._hashes[shard.file][member]
            if found != expected:
                raise Corrupted(f"corrupted, sha256 is {found}, the index says {expected}")
            ids = self._checked(np.frombuffer(content, self._dtype, tokens, NPY_HEADER))
        self._kept[key] = ids
        if len(self._kept) > MEMBERS_KEPT:
            del self._kept[next(iter(self._kept))]
        return ids[begin:end]


def exactly(read: Read, offset: int, size: int) -> bytes:
    """`size` bytes. Raises Corrupted if there are fewer."""
    content = read(offset, size)
    if len(content) < size:
        raise Corrupted(f"truncated, {len(content)} of its {size} bytes at offset {offset} are there")
    return content


class ShardFile:
    """An open shard, which is closed when nothing refers to it any more.

    Attributes:
        all: Those of the process.
    """

    all: ClassVar[WeakSet["ShardFile"]] = WeakSet()

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        self.all.add(self)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def inode(self) -> int:
        """Number of the file, which a new copy of the same name does not have."""
        return os.fstat(self._descriptor).st_ino

    def removed(self) -> bool:
        """Whether the file has no name any more: what it takes on the disk is free when it is closed."""
        return os.fstat(self._descriptor).st_nlink == 0

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset` on; fewer if the file ends before."""
        content = os.pread(self._descriptor, size, offset)
        if 0 < len(content) < size:
            content += self.read(offset + len(content), size - len(content))
        return content


class SplitReader:
    """The token ids of one split.

    directory: path or URL of the data directory; a URL needs a cache. cache: on this node's disk, to which shards are copied
    when first needed, and from which they are read.
    folder: local folder with the shards or their copies.
    Raises FileNotFoundError if a shard is missing, and UserError if its size differs from the index. Shards at a URL are
    looked for when they are copied.
    """

    def __init__(self, directory: str | Path, index: Index, split: str, cache: CacheFolder | None = None):
        self._directory = str(directory)
        self._cache = None if cache is None else ShardCache(cache, self._directory, index)
        self.folder = Path(self._directory) if self._cache is None else self._cache.folder
        self._evicts = cache is not None and cache.max_bytes is not None
        self._shards = index.splits[split].shards
        self._verifier = MemberVerifier(index, index.earlier.member_hashes) if index.earlier else Verifier(index)
        if not is_url(self._directory):
            for shard in self._shards:
                self._check_size(shard)
        self._open: dict[int, ShardFile] = {}  # by shard, the most recently used last

    def read(self, shard: int, begin: int, end: int) -> np.ndarray:
        """Token ids [begin, end) of a shard, by its number; at least one.

        Raises UserError if what is read differs from the index, OSError if it cannot be read.
        """
        size = self._shards[shard].member_tokens
        parts = []
        while begin < end:
            member, first = divmod(begin, size)
            last = min(first + end - begin, size)
            parts.append(retry_transient_errors(partial(self._ids, shard, member, first, last)))
            begin += last - first
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def members(self, progress: Report = lambda tokens: None) -> Iterator[np.ndarray]:
        """The token ids of all members in order. Raises as `read` does."""
        for number, shard in enumerate(self._shards):
            for begin in range(0, shard.tokens, shard.member_tokens):
                yield self.read(number, begin, end := min(begin + shard.member_tokens, shard.tokens))
                progress(end - begin)

    def expect(self, shards: Sequence[int]) -> None:
        """Say which shards are needed soon, by number: those at a URL are copied ahead."""
        if self._cache is not None:
            self._cache.expect([self._shards[number] for number in shards])

    def _ids(self, number: int, member: int, begin: int, end: int) -> np.ndarray:
        """Ids of a member. A corrupted copy is replaced once."""
        shard = self._shards[number]
        for is_last in (False, True):
            try:
                file = self._file(number)
                return self._verifier.ids(shard, member, begin, end, file.read)
            except OSError:
                self._open.pop(number, None)  # the next attempt opens the file again
                raise
            except Corrupted as error:
                fault = error
            if self._cache is None:
                break
            if not is_last:
                LOG.warning(f"warning: {file.path} member {member}: {fault}. This copy is removed and made again")
            self._cache.remove(shard, file.inode())
            del self._open[number]
        original = f"{self._directory}/{shard.file}"
        if self._cache is not None:
            with suppress(Corrupted), open_file(original) as source:
                self._verifier.ids(shard, member, begin, end, partial(_read, source))
                raise UserError(
                    f"{file.path} member {member}: {fault}, twice, though {original} is right: the disk of data.cache "
                    "corrupts what it stores, choose another one"
                )
        raise UserError(f"{original} member {member}: {fault}: {REMEDY}")

    def _check_size(self, shard: Shard) -> None:
        path = f"{self._directory}/{shard.file}"
        try:
            status = os.stat(path)
        except FileNotFoundError:
            raise MissingPath(f"{path}: shard not found, the index lists it with {shard.bytes} bytes: {REMEDY}") from None
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path}: a folder, a pipe or a device, or a link to one, not a shard: {REMEDY}")
        if (size := status.st_size) != shard.bytes:
            raise UserError(f"{path}: shard of {size} bytes, the index says {shard.bytes} ({shard.tokens} tokens): {REMEDY}")

    def _file(self, number: int) -> ShardFile:
        """The shard, or its copy in the cache. Of all shards of the process at most `max_open_shards` remain open."""
        if (file := self._open.pop(number, None)) is None:
            while self._open and len(ShardFile.all) >= max_open_shards():
                del self._open[next(iter(self._open))]
            file = self._opened(self._shards[number])
        self._open[number] = file
        return file

    def _opened(self, shard: Shard) -> ShardFile:
        if self._cache is None:
            self._check_size(shard)
            return ShardFile(Path(self._directory) / shard.file)
        if self._evicts:
            self._open = {number: file for number, file in self._open.items() if not file.removed()}
        while True:  # another rank may make room where the copy is, before it is opened
            path = self._cache.local(shard)
            with suppress(FileNotFoundError):
                return ShardFile(path)


@once
def max_open_shards() -> int:
    """Half of the descriptors that the process may have.

    Its soft limit, often 1,024, becomes the hard one: with fewer descriptors than shards nearly every sample opens a file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(soft, allowed) // 2


def _read(file: BinaryIO, offset: int, size: int) -> bytes:
    """Read of a file."""
    file.seek(offset)
    return file.read(size)

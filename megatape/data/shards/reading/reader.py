"""Reads token ids from the shards of a split, verifying every read. Nothing is extracted, unpickled or mapped.

If a mapped file were truncated, reading it would kill the process (SIGBUS); if it were overwritten, other tokens would appear.
Verifying each read anew notices a shard that changes while it is open.
"""

import logging
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from megatape.data.io.files import is_url, open_file
from megatape.data.shards.entries import Index, Shard
from megatape.data.shards.reading.cache import CacheFolder, ShardCache
from megatape.data.shards.reading.shard_file import ShardFile, max_open_shards
from megatape.data.shards.reading.verifier import MEMBER_CACHE_SIZE, Corrupted, MemberRange, MemberVerifier, Verifier
from megatape.errors import MissingPath, UserError
from megatape.utils.files.retries import retry_transient_errors

LOG = logging.getLogger(__name__)

# Maximum number of shards whose sizes are checked when a split is opened, because all ranks ask the file server at once. A size
# is checked again when its shard is opened.
MAX_CHECKED_SHARDS = 4096
REMEDY = "copy the shard again or re-run the preparation"
# Progress callback, called with the number of tokens processed since the last call.
OnTokens = Callable[[int], object]


class SplitReader:
    """Token ids of one split.

    Args:
        directory: Path or URL of the data directory. A URL needs a cache.
        index: Index of the data directory.
        split: Split name.
        cache: Folder on this node's disk, to which shards are copied when first needed.
        max_open: Maximum open shards in this process. None: `max_open_shards`.
        member_cache_size: Members cached in memory, for data directories from earlier versions.

    Attributes:
        folder: Local folder with the shards or their copies.

    Raises:
        FileNotFoundError: A local shard is missing.
        UserError: The size of a local shard differs from the index. Shards at a URL are checked while copying, and those of a
            split with more than MAX_CHECKED_SHARDS when they are first read.
    """

    def __init__(
        self,
        directory: str | Path,
        index: Index,
        split: str,
        cache: CacheFolder | None = None,
        *,
        max_open: int | None = None,
        member_cache_size: int = MEMBER_CACHE_SIZE,
    ) -> None:
        self._directory = str(directory)
        self._cache: ShardCache | None = None
        self.folder = Path(self._directory)
        if cache is not None:
            self._cache = ShardCache(cache, self._directory, index)
            self.folder = self._cache.folder
        self._evicts = cache is not None and cache.max_bytes is not None
        self._shards = index.splits[split].shards
        self._max_open = max_open
        self._verifier = Verifier(index)
        if index.earlier:
            self._verifier = MemberVerifier(index, index.earlier.member_hashes, member_cache_size)
        if not is_url(self._directory) and len(self._shards) <= MAX_CHECKED_SHARDS:
            for shard in self._shards:
                self._check_size(shard)
        # Number of a shard -> its open file. The most recently used entry is the last one.
        self._open: dict[int, ShardFile] = {}

    def read(self, shard: int, begin: int, end: int) -> np.ndarray:
        """Return token ids [begin, end) of a shard, at least one.

        Args:
            shard: Number of the shard.
            begin: First id.
            end: End of the ids.

        Raises:
            UserError: The content differs from the index.
            OSError: The shard cannot be read.
        """
        entry = self._shards[shard]
        member, first = divmod(begin, entry.member_tokens)
        last = first + end - begin
        if last <= entry.member_tokens:
            return self._ids(shard, MemberRange(entry, member, first, last))
        part = self._ids(shard, MemberRange(entry, member, first, entry.member_tokens))
        return np.concatenate([part, self.read(shard, begin + part.size, end)])

    def members(self, progress: OnTokens = lambda tokens: None) -> Iterator[np.ndarray]:
        """Yield the token ids of all members in order. Raises like `read`."""
        for number, shard in enumerate(self._shards):
            for begin in range(0, shard.tokens, shard.member_tokens):
                end = min(begin + shard.member_tokens, shard.tokens)
                yield self.read(number, begin, end)
                progress(end - begin)

    def expect(self, shards: Sequence[int]) -> None:
        """Announce the shards needed next, by number. With a cache, they are copied ahead."""
        if self._cache is not None:
            self._cache.expect([self._shards[number] for number in shards])

    def _ids(self, number: int, part: MemberRange) -> np.ndarray:
        """Return ids of a shard, given its number."""
        try:
            return self._verified_ids(number, part)
        except (OSError, Corrupted):
            # Read again, patiently.
            return retry_transient_errors(partial(self._ids_after_errors, number, part))

    def _ids_after_errors(self, number: int, part: MemberRange) -> np.ndarray:
        """Return ids of a shard, given its number. A corrupted copy is replaced once."""
        try:
            return self._verified_ids(number, part)
        except Corrupted as error:
            reason = str(error)
        if self._cache is None:
            raise self._corrupted(part, reason)

        copy = self._open[number].path
        LOG.warning(f"warning: {copy} member {part.member}: {reason}. This copy is removed and made again")
        self._remove_copy(number, self._cache)
        try:
            return self._verified_ids(number, part)
        except Corrupted as error:
            reason = str(error)
        self._remove_copy(number, self._cache)
        if self._original_is_right(part):
            raise UserError(
                f"{copy} member {part.member}: {reason}, twice, though {self._directory}/{part.shard.file} is right: the disk "
                "of data.cache corrupts what it stores, choose another one"
            )
        raise self._corrupted(part, reason)

    def _verified_ids(self, number: int, part: MemberRange) -> np.ndarray:
        try:
            file = self._file(number)
            return self._verifier.ids(part, file.read)
        except OSError:
            # Let the next attempt reopen the file.
            self._open.pop(number, None)
            raise

    def _remove_copy(self, number: int, cache: ShardCache) -> None:
        cache.remove(self._shards[number], self._open[number].inode())
        del self._open[number]

    def _original_is_right(self, part: MemberRange) -> bool:
        with open_file(f"{self._directory}/{part.shard.file}") as source:
            try:
                self._verifier.ids(part, partial(_read, source))
            except Corrupted:
                return False
        return True

    def _corrupted(self, part: MemberRange, reason: str) -> UserError:
        return UserError(f"{self._directory}/{part.shard.file} member {part.member}: {reason}: {REMEDY}")

    def _check_size(self, shard: Shard) -> None:
        path = f"{self._directory}/{shard.file}"
        try:
            status = os.stat(path)
        except FileNotFoundError:
            raise MissingPath(f"{path}: shard not found, the index lists it with {shard.bytes} bytes: {REMEDY}") from None
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path}: a folder, a pipe or a device, or a link to one, not a shard: {REMEDY}")
        size = status.st_size
        if size != shard.bytes:
            raise UserError(f"{path}: shard of {size} bytes, the index says {shard.bytes} ({shard.tokens} tokens): {REMEDY}")

    def _file(self, number: int) -> ShardFile:
        """Return an open shard, or its cached copy, closing others if this process has too many open."""
        file = self._open.pop(number, None)
        if file is None:
            max_open = self._max_open or max_open_shards()
            while self._open and len(ShardFile.all) >= max_open:
                least_recent = next(iter(self._open))
                del self._open[least_recent]
            file = self._opened(self._shards[number])
        self._open[number] = file
        return file

    def _opened(self, shard: Shard) -> ShardFile:
        if self._cache is None:
            self._check_size(shard)
            return ShardFile(Path(self._directory) / shard.file)
        if self._evicts:
            # Closing evicted copies frees their space.
            self._open = {number: file for number, file in self._open.items() if not file.removed()}
        # Another rank may evict the copy before it is opened here.
        while True:
            path = self._cache.local(shard)
            with suppress(FileNotFoundError):
                return ShardFile(path)


def _read(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)

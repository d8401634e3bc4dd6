"""Caches shards on a node's local disk, so that each node, not each rank, reads the shared or remote file system."""

import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from megatape.data.io.files import copy_file
from megatape.data.shards.entries import Index, Shard
from megatape.data.shards.hashes import content_hash
from megatape.errors import PathError
from megatape.utils.files.atomic import rename
from megatape.utils.files.locks import locked


@dataclass(frozen=True)
class CacheFolder:
    """Folder for copies of shards.

    Attributes:
        root: Folder on a local disk, where file locks and renaming work.
        max_bytes: Maximum total size of completed copies. None: unlimited.
    """

    root: Path
    max_bytes: int | None = None

    def make_room(self, num_bytes: int) -> None:
        """Remove the least recently used copies until `num_bytes` more fit.

        A rank still reading a removed copy can continue until it closes the file.
        """
        if self.max_bytes is None:
            return
        with locked(self.root / "room.lock"):
            copies = []
            for path in self.root.glob("*/*.tar"):
                status = _status(path)
                if status is not None:
                    copies.append((status.st_mtime_ns, path, status.st_size))
            copies.sort()
            used = sum(size for *_, size in copies)
            for _, path, size in copies:
                if used + num_bytes <= self.max_bytes:
                    break
                path.unlink(missing_ok=True)
                used -= size


class ShardCache:
    """Copies of a data directory's shards, in a folder named after a hash of its index.

    The ranks of a node share them: the first rank needing a shard copies it while the others wait.

    Args:
        cache: Folder for the copies from all data directories.
        origin: Path or URL of the data directory.
        index: Index of the data directory.

    Attributes:
        folder: Folder with the copies from this data directory.
    """

    def __init__(self, cache: CacheFolder, origin: str, index: Index) -> None:
        self._cache = cache
        self._origin = origin
        self.folder = cache.root / content_hash([index.fingerprint(split) for split in index.splits])[:16]
        # Shards to copy ahead, the next one first.
        self._expected: deque[Shard] = deque()
        self._thread: threading.Thread | None = None

    def local(self, shard: Shard) -> Path:
        """Return the path of a shard's copy, after copying it if it is missing or has another size. Readers verify the content.

        Raises:
            OSError: The shard cannot be copied.
        """
        copy = self.folder / shard.file
        if not _complete(copy, shard):
            with self._locked(shard):
                # Another rank may have made the copy while this one waited.
                if not _complete(copy, shard):
                    self._copy(shard, copy)
        self._used(shard)
        return copy

    def expect(self, shards: Sequence[Shard]) -> None:
        """Copy these shards ahead in a thread, in this order, dropping earlier expectations.

        The thread ignores errors: `local` raises them when the shard is needed.
        """
        self._expected = deque(shards)
        # Protect existing copies from eviction.
        for shard in shards:
            self._used(shard)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._fetch, name="shards", daemon=True)
            self._thread.start()

    def remove(self, shard: Shard, inode: int) -> None:
        """Remove a corrupted copy, given its inode, unless another rank has replaced it."""
        copy = self.folder / shard.file
        with self._locked(shard):
            if copy.exists() and copy.stat().st_ino == inode:
                copy.unlink()

    def _used(self, shard: Shard) -> None:
        """Mark the copy of a shard as recently used, if it exists."""
        with suppress(FileNotFoundError):
            os.utime(self.folder / shard.file)

    def _fetch(self) -> None:
        while True:
            # `expect` replaces the queue.
            queue = self._expected
            if not queue:
                return
            shard = queue.popleft()
            copy = self.folder / shard.file
            with suppress(OSError), self._locked(shard, wait=False):
                if not _complete(copy, shard):
                    self._copy(shard, copy)

    def _locked(self, shard: Shard, wait: bool = True) -> AbstractContextManager[object]:
        return locked(self.folder / f"{shard.file}.lock", wait)

    def _copy(self, shard: Shard, copy: Path) -> None:
        partial = copy.with_name(f"{shard.file}.partial")
        try:
            self._cache.make_room(shard.bytes)
            # A killed process may have left it. It may also be a link.
            partial.unlink(missing_ok=True)
            copy_file(f"{self._origin}/{shard.file}", partial, size=shard.bytes)
            rename(partial, copy)
        except OSError as error:
            raise PathError(f"data.cache {self.folder}: cannot copy {shard.file}, {shard.bytes} bytes: {error}") from error
        finally:
            partial.unlink(missing_ok=True)


def _complete(copy: Path, shard: Shard) -> bool:
    status = _status(copy)
    return status is not None and status.st_size == shard.bytes


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None

"""Open shards, and the limit on how many a process may have open."""

import os
import resource
from functools import cache
from pathlib import Path
from typing import ClassVar
from weakref import WeakSet, finalize

# Soft limit on descriptors to ask for, if the hard limit allows it.
MAX_DESCRIPTORS = 2**20


class ShardFile:
    """Open shard. The file is closed when the object is garbage collected.

    Attributes:
        all: All open shards of this process.
    """

    all: ClassVar[WeakSet["ShardFile"]] = WeakSet()

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        self.all.add(self)
        close = finalize(self, os.close, self._descriptor)
        # At exit, other threads may still read, and the system closes the file.
        close.atexit = False

    def inode(self) -> int:
        """Return the inode number, which differs for a new copy with the same name."""
        return os.fstat(self._descriptor).st_ino

    def removed(self) -> bool:
        """Whether the file has been unlinked. Closing it then frees its disk space."""
        return os.fstat(self._descriptor).st_nlink == 0

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset` on, or fewer if the file ends before."""
        content = os.pread(self._descriptor, size, offset)
        if 0 < len(content) < size:
            content += self.read(offset + len(content), size - len(content))
        return content


@cache
def max_open_shards() -> int:
    """Return half the number of descriptors allowed to this process.

    Raises the soft limit, often 1,024, to the hard one: with fewer descriptors than shards, nearly every sample opens a file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MAX_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        allowed = min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(soft, allowed) // 2

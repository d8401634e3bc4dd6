"""Open shards, and the number of files that a process may keep open."""

import os
import resource
from functools import cache
from pathlib import Path
from typing import ClassVar
from weakref import WeakSet

# Largest number of descriptors that a process asks for, if its hard limit allows them.
MAX_DESCRIPTORS = 2**20


class ShardFile:
    """An open shard. The file is closed when nothing refers to the object any more.

    Attributes:
        all: Open shards of the process.
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
        """Return the number of the file. A new copy of the same name has another one."""
        return os.fstat(self._descriptor).st_ino

    def removed(self) -> bool:
        """Whether the file has no name any more. Closing it frees its space on the disk."""
        return os.fstat(self._descriptor).st_nlink == 0

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset` on, or fewer if the file ends before."""
        content = os.pread(self._descriptor, size, offset)
        if 0 < len(content) < size:
            content += self.read(offset + len(content), size - len(content))
        return content


@cache
def max_open_shards() -> int:
    """Return half of the descriptors that the process may have.

    Raises the soft limit, often 1,024, to the hard one: with fewer descriptors than shards nearly every sample opens a file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MAX_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        allowed = min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(soft, allowed) // 2

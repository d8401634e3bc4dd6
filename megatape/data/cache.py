"""Copies of shards on a node's own disk, so that each node, not each rank, reads the shared file system."""

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from megatape.data.index import Index, Shard


class ShardCache:
    """Copies of the shards of a data directory under `root`, in a folder named after a hash of its index.

    The ranks of a node share it: the first one that needs a shard copies it while the others wait.
    `root` must be on a local disk, where file locks and renaming work."""

    def __init__(self, root: Path, directory: Path, index: Index) -> None:
        self._directory = directory
        identity = hashlib.sha256(json.dumps(asdict(index), sort_keys=True).encode()).hexdigest()
        self._folder = root / identity[:16]

    def local(self, shard: Shard) -> Path:
        """Path of the local copy, which is made if there is none of the shard's size. Readers verify its members.

        Raises OSError if the shard cannot be copied."""
        copy = self._folder / shard.file
        if not _complete(copy, shard):
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._locked(shard):
                if not _complete(copy, shard):  # unless another rank was faster
                    self._copy(shard, copy)
        return copy

    def remove(self, shard: Shard, inode: int) -> None:
        """Remove the copy that was found to be corrupted, unless another rank has replaced it since."""
        copy = self._folder / shard.file
        with self._locked(shard):
            if copy.exists() and copy.stat().st_ino == inode:
                copy.unlink()

    @contextmanager
    def _locked(self, shard: Shard) -> Iterator[None]:
        with (self._folder / f"{shard.file}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _copy(self, shard: Shard, copy: Path) -> None:
        partial = copy.with_name(f"{shard.file}.partial")
        try:
            shutil.copyfile(self._directory / shard.file, partial)
            partial.rename(copy)
        except OSError as error:
            raise OSError(f"data.cache {self._folder}: cannot copy {shard.file}, {shard.bytes} bytes: {error}") from error
        finally:
            partial.unlink(missing_ok=True)


def _complete(copy: Path, shard: Shard) -> bool:
    return copy.is_file() and copy.stat().st_size == shard.bytes

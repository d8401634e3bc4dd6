"""Copies of shards on a node's own disk, so that each node, not each rank, reads the shared file system."""

import fcntl
import hashlib
import json
import shutil
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
        """Path of the local copy, which is created and checked against the index if there is none.

        Raises ValueError if the shard differs from the index, OSError if the copy cannot be written."""
        copy = self._folder / shard.file
        if not _complete(copy, shard):
            self._folder.mkdir(parents=True, exist_ok=True)
            with open(copy.with_name(f"{shard.file}.lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not _complete(copy, shard):  # unless another rank was faster
                    self._copy(shard, copy)
        return copy

    def _copy(self, shard: Shard, copy: Path) -> None:
        partial = copy.with_name(f"{shard.file}.partial")
        try:
            shutil.copyfile(self._directory / shard.file, partial)
            with open(partial, "rb") as stream:
                for number, member in enumerate(shard.members):
                    stream.seek(member.offset)
                    if hashlib.sha256(stream.read(member.bytes)).hexdigest() != member.sha256:
                        raise ValueError(
                            f"{self._directory / shard.file} member {number}: corrupted, or its copy in data.cache "
                            f"{self._folder} is: copy the shard again or re-run the preparation"
                        )
            partial.rename(copy)
        except OSError as error:
            raise OSError(f"data.cache {self._folder}: cannot copy {shard.file}, {shard.bytes} bytes: {error}") from error
        finally:
            partial.unlink(missing_ok=True)


def _complete(copy: Path, shard: Shard) -> bool:
    return copy.is_file() and copy.stat().st_size == shard.bytes

"""Copies of shards on a node's own disk, so that a shared file system is read once for each node instead of by every rank."""

import fcntl
import hashlib
import json
import shutil
from dataclasses import asdict
from pathlib import Path

from megatape.data.index import Index, Shard


class ShardCache:
    """Shards of one data directory under `root`, in a folder named after the directory's content.

    Ranks of one node share it: the first that needs a shard copies it while the others wait. `root` must be a local disk, where
    file locks and renaming work."""

    def __init__(self, root: Path, directory: Path, index: Index) -> None:
        self._directory = directory
        identity = hashlib.sha256(json.dumps(asdict(index), sort_keys=True).encode()).hexdigest()
        self._folder = root / identity[:16]

    def local(self, shard: Shard) -> Path:
        """Path of the local copy, made and checked against the index now if there is none.

        Raises ValueError if the original is not what the index says, OSError if the copy cannot be written."""
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
                            f"{self._directory / shard.file} member {number}: corrupt, or damaged on the way to data.cache "
                            f"{self._folder}: copy the shard again or re-run the preparation"
                        )
            partial.rename(copy)
        except OSError as error:
            raise OSError(f"data.cache {self._folder}: no copy of {shard.file}, {shard.bytes} bytes: {error}") from error
        finally:
            partial.unlink(missing_ok=True)


def _complete(copy: Path, shard: Shard) -> bool:
    return copy.is_file() and copy.stat().st_size == shard.bytes

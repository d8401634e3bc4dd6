"""A disk that can be filled."""

import os
import resource
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MEBIBYTES = 48


class Tmpfs:
    """A small file system, filled by a file."""

    name = f"a tmpfs of {MEBIBYTES} MiB"

    def __init__(self, folder: Path) -> None:
        self._filler = folder / "filler"

    @contextmanager
    def full(self, processes: Iterable[int]) -> Iterator[None]:
        """Keep the file system full while the block runs."""
        with self._filler.open("wb", buffering=0) as file:
            try:
                with suppress(OSError):
                    while file.write(bytes(2**16)):
                        pass
                yield
            finally:
                self._filler.unlink()


class FileSizeLimit:
    """Stand-in for a full disk on machines that mount no file system: the ranks' files can't grow."""

    name = "RLIMIT_FSIZE of the ranks"

    @contextmanager
    def full(self, processes: Iterable[int]) -> Iterator[None]:
        """Keep the files of these processes from growing while the block runs."""
        before: dict[int, tuple[int, int]] = {}
        try:
            for process in processes:
                with suppress(ProcessLookupError):
                    before[process] = _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
                    resource.prlimit(process, resource.RLIMIT_FSIZE, (0, hard))
            yield
        finally:
            for process, limits in before.items():
                with suppress(ProcessLookupError):
                    resource.prlimit(process, resource.RLIMIT_FSIZE, limits)


Disk = Tmpfs | FileSizeLimit


@contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    """Create a folder with a small disk, mounting a separate file system if this process may."""
    # An earlier call leaves the folder.
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={MEBIBYTES}m", "tmpfs", str(folder)]
    if os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0:
        try:
            yield Tmpfs(folder)
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
    else:
        yield FileSizeLimit()

"""Opens a data directory by path or URL. From a URL, the index and other small files are first copied to this machine."""

from dataclasses import dataclass
from functools import cache as once
from pathlib import Path
from tempfile import TemporaryDirectory

from megatape.data.document_entries import INDEX_FILE
from megatape.data.io.files import copy_file, is_url
from megatape.data.shards.hashes import file_sha256
from megatape.data.shards.reading.cache import CacheFolder
from megatape.errors import UserError
from megatape.utils.files.atomic import rename
from megatape.utils.text.url_secrets import is_masked


@dataclass(frozen=True)
class DataFolder:
    """Opened data directory.

    Attributes:
        origin: Path or URL of the data directory.
        directory: Local folder with its small files.
    """

    origin: str
    directory: Path

    def fetch(self, *names: str) -> None:
        """Copy files to this machine if the directory is at a URL. Readers verify their content.

        Raises:
            OSError: A file cannot be copied.
        """
        if not is_url(self.origin):
            return
        for name in names:
            path = self.directory / name
            if path.is_file():
                continue
            # Ranks of the same node may be copying the same file.
            with TemporaryDirectory(dir=self.directory) as temporary:
                copy = Path(temporary) / name
                copy_file(f"{self.origin}/{name}", copy)
                rename(copy, path)


def open_folder(name: str | Path, cache: CacheFolder | None) -> DataFolder:
    """Open the data directory at a path or URL.

    Args:
        name: Path or URL.
        cache: Folder for copies, required for a URL.

    Raises:
        UserError: The URL is masked.
        OSError: The index at a URL cannot be copied.
    """
    origin = str(name)
    if is_masked(origin):
        raise UserError(f"{origin}: its password or signature is masked, as in the files of a run: give the original data.path")
    if not is_url(origin):
        return DataFolder(origin, Path(origin))
    assert cache is not None, "the configuration demands one"
    return _fetched(origin.rstrip("/"), cache.root)


# Cached, so that both splits of a run use the same index, even if the one at the URL changes.
@once
def _fetched(url: str, root: Path) -> DataFolder:
    root.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=root) as temporary:
        index = Path(temporary) / INDEX_FILE
        copy_file(f"{url}/{INDEX_FILE}", index)
        # Naming the folder after the index keeps files from different indices apart.
        directory = root / file_sha256(index)[:16]
        directory.mkdir(exist_ok=True)
        rename(index, directory / INDEX_FILE)
    return DataFolder(url, directory)

"""Lists folders on a server.

The walk uses fsspec's listing of single folders. fsspec's own walk follows links of a web page to the folders above, skips
folders that fail, or repeats the whole walk for one of them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from megatape.data.io.listing import ListedFile
from megatape.data.io.local_folder import FolderContent, is_hidden, name_matcher
from megatape.data.io.remote_file import remote_path, time_limit
from megatape.data.io.retries import Attempts, is_http
from megatape.errors import UserError

# Maximum depth of folders, because a listing that contains itself never ends.
MAX_DEPTH = 32
# A listing arrives in one piece, so it may take this many times Retries.timeout.
LISTING_TIMEOUTS = 5


def find_remote(url: str, patterns: Sequence[str], recursive: bool) -> FolderContent | None:
    """List a file or folder on a server.

    Args:
        url: URL of the file or folder. Its last part may be a pattern.
        patterns: File names to read in a folder.
        recursive: Whether to search subfolders.

    Returns:
        None if the server says that it does not exist. A web server says so only when the file is read.
    """
    folder, slash, pattern = url.rpartition("/")
    has_own_pattern = "*" in pattern
    if has_own_pattern:
        url = folder + slash
        patterns = (pattern,)
        recursive = False
    system, path = remote_path(url)
    attempts = Attempts(url)
    if is_http(url):
        is_file = not url.endswith("/")
    else:
        try:
            is_file = attempts.run(lambda: system.info(path)["type"]) == "file"
        except FileNotFoundError:
            return None
    if is_file:
        return FolderContent([ListedFile(url)], [])

    matching: list[ListedFile] = []
    skipped: list[ListedFile] = []
    matches = name_matcher(patterns)
    for file in _walk(url, system, path, attempts, recursive):
        folder, _, name = file.name.removesuffix("/").removeprefix(path).rpartition("/")
        # Web pages also link to other pages.
        is_link = is_http(url) and (not file.name.startswith(path) or "?" in name)
        if matches(name) and not file.name.endswith("/"):
            matching.append(file)
        elif not has_own_pattern and not is_link and not is_hidden(folder, name):
            skipped.append(file)
    return FolderContent(_sorted(matching, system), _sorted(skipped, system))


def _sorted(files: list[ListedFile], system: Any) -> list[ListedFile]:
    """Return files under their URLs, sorted like paths."""
    in_order = sorted(files, key=lambda file: file.name.split("/"))
    return [ListedFile(system.unstrip_protocol(file.name), file.size) for file in in_order]


def _walk(url: str, system: Any, path: str, attempts: Attempts, recursive: bool) -> Iterator[ListedFile]:
    """Yield the files in a folder on a server, named without protocol. Folders not entered end with a slash.

    Raises:
        UserError: Folders are nested too deeply.
    """
    limit = time_limit(url, LISTING_TIMEOUTS * attempts.retries.timeout)
    folders = [path]
    while folders:
        # Take the deepest folder, so that a folder containing itself is noticed at once.
        folder = folders.pop()
        if folder.count("/") - path.count("/") > MAX_DEPTH:
            raise UserError(
                f"{url}: folders more than {MAX_DEPTH} deep, its listings contain themselves: give the folders or files in it"
            )
        for entry in attempts.run(lambda: system.ls(folder, detail=True, **limit)):  # noqa: B023  # It is called at once.
            name = entry["name"]
            if is_http(url) and ".." in name.split("/"):
                # The page links to a folder above.
                continue
            is_inside = name.startswith(folder) and len(name) > len(folder)
            if entry["type"] != "directory":
                yield ListedFile(name, entry.get("size"))
            elif is_inside and recursive:
                folders.append(name)
            elif is_inside:
                yield ListedFile(f"{name.rstrip('/')}/", 0)

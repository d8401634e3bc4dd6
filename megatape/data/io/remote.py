"""Files named by a path or a URL: found, sized, opened and copied in one way, by fsspec.

Folders are walked by hand, over fsspec's listing of each: its own walk follows the links of a web page to the folders above,
skips folders that fail, or repeats the whole walk for one of them.
"""

import io
import os
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase, translate
from itertools import islice, pairwise
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast
from urllib.parse import unquote

from braceexpand import braceexpand

from megatape.data.io.listing import ListedFile, Listing, check_skipped, wanted
from megatape.data.io.remote_file import Attempts, RemoteFile, file_system, is_http, within
from megatape.errors import MissingPath, PathError, UserError
from megatape.utils.files import PARTIAL, create_file

URL = re.compile(r"[a-z][a-z0-9+.-]+://")
LOCAL = "file://"
BUFFER_BYTES = 2**18
COPY_BYTES = 8 * 2**20  # at a time
AT_ONCE = 16  # requests for sizes
RANGE = re.compile(r"\{(-?\d+)\.\.(-?\d+)(?:\.\.-?0*([1-9]\d*))?")  # in braces: first and last number, step
# A file of a set, such as c4-train.00000-of-01024.json.gz.
NUMBERED = re.compile(r"(.*?)(\d+)([-_]of[-_])(\d+)(?:-[0-9a-f]{16})?(\D.*)?")
MAX_NAMES = 100_000  # that braces stand for
MAX_DEPTH = 32  # of folders on a server: a listing that contains itself has any depth
LISTING_TIMEOUTS = 5  # a listing, which comes in one piece, may take so many times Retries.timeout


def is_url(name: str) -> bool:
    """Whether `name` is a URL, file:// included, and no path."""
    return URL.match(name) is not None


def open_file(name: str) -> BinaryIO:
    """A file to read, which can seek. Raises OSError, when it is opened or read, and as `find_files` does."""
    if path := _local(name):
        return path.open("rb")
    return cast(BinaryIO, io.BufferedReader(RemoteFile(name), BUFFER_BYTES))


def copy_file(name: str, path: Path, size: int | None = None) -> None:
    """Copy a file to a local path.

    Args:
        name: Path or URL of the file.
        path: Name of the copy, which must not exist.
        size: Size in bytes that the file must have; None: any.

    Raises:
        OSError: The file has another size, or cannot be read or written. The copy is then incomplete.
    """
    with open_file(name) as source, create_file(path) as copy:
        if size is not None and (found := source.seek(0, io.SEEK_END)) != size:
            raise PathError(f"{name}: {found:,} bytes, not {size:,}")
        source.seek(0)
        shutil.copyfileobj(source, copy, COPY_BYTES)


class FileState(NamedTuple):
    """State of a file as it is stored.

    Attributes:
        size: bytes.
        version: its size and the time of its last change in nanoseconds, or the tag that its
            server gives its content, if it gives any.
    """

    size: int
    version: str


def file_states(names: Sequence[str]) -> list[FileState]:
    """States of files. Raises OSError."""

    def state(name: str) -> FileState:
        if path := _local(name):
            status = path.stat()
            return FileState(status.st_size, f"{status.st_size}-{status.st_mtime_ns}")
        file = RemoteFile(name)
        return FileState(file.size, f"{file.size}-{file.version}")

    if not any(map(is_url, names)):
        return list(map(state, names))
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(state, names))


def find_files(
    inputs: Sequence[str], *patterns: str, recursive: bool = True, option: str = "input", partial: bool = True
) -> list[str]:
    """Return the given files, and the matching files in the given folders, sorted by path within each.

    Args:
        inputs: Files and folders, see `list_inputs`.
        patterns: Names of files in folders.
        recursive: Whether folders in folders are searched.
        option: Option that gave the inputs.
        partial: Whether a folder may lack files of a set whose names tell how many it has. Files that are listed may be any.

    Raises:
        MissingPath: An input does not exist.
        UserError: A folder has no match or only a part of a set, a file is given twice, or a protocol is unknown.
        ModuleNotFoundError: The package of a protocol is not installed.
    """
    listings = list_inputs(inputs, *patterns, recursive=recursive, option=option)
    return listed_files(listings, option=option, partial=partial)


def list_inputs(inputs: Sequence[str], *patterns: str, recursive: bool = True, option: str = "input") -> list[Listing]:
    """List the content of inputs.

    Braces in URLs are expanded, as shells do in paths, and so is * in a file's name. A folder on a web server is a URL that
    ends with a slash.

    Args:
        inputs: Files and folders.
        patterns: Names of the files to read in folders. Case does not matter.
        recursive: Whether to search folders in folders.
        option: Option that gave the inputs.

    Returns:
        One listing per file or folder, in order. A given file is read regardless of its name.

    Raises:
        MissingPath: An input does not exist.
        UserError: A folder has no match, or a protocol is unknown.
        ModuleNotFoundError: The package of a protocol is not installed.
    """
    listings = []
    for given in inputs:
        for name in _expanded(given):
            path = _local(name)
            if path:
                found = _find(path, patterns, recursive)
            else:
                found = _find_remote(name, patterns, recursive)
            if found is None:
                raise MissingPath(f"{option} {name}: no such file or directory")
            files, skipped = found
            if not files:
                raise UserError(f"{option} {name}: no file named {wanted(patterns)} in this directory")
            is_folder = [file.name for file in files] != [name]
            listings.append(Listing(given, files, skipped, patterns, is_folder))
    return listings


def listed_files(
    listings: Sequence[Listing], option: str = "input", partial: bool = True, max_skipped_fraction: float = 1.0
) -> list[str]:
    """Return the files to read.

    Args:
        listings: Content of the inputs.
        option: Option that gave the inputs.
        partial: Whether a folder may lack files of a set whose names contain its size. Files given by name are not checked.
        max_skipped_fraction: Largest fraction of a folder's files or bytes that may be skipped because of their names.

    Raises:
        UserError: A folder has only a part of a set or too many skipped files, or a file is given twice.
    """
    files: list[str] = []
    for listing in listings:
        if not partial and listing.is_folder:
            _check_sets(listing.names, f"{option} {listing.given}")
        check_skipped(listing, max_skipped_fraction, option)
        files += listing.names
    check_distinct(files, option)
    return files


def check_distinct(files: Iterable[str], option: str) -> None:
    """Raise UserError if a file or a URL is there twice. option: that gave it for the second time."""
    counts = Counter(name if is_url(name) else os.path.abspath(name) for name in files)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise UserError(f"{option}: {repeated[0]} is given twice")


def relative(name: str, given: str) -> str | None:
    """The path of the file `name` in the input `given`; empty if they are the same, None if it is not in there."""
    for one in _expanded(given):
        if is_url(one) and "*" in one and fnmatchcase(name, one):
            return ""
        if is_url(one) and is_url(name) and (name == one or name.startswith(one.rstrip("/") + "/")):
            return name.removeprefix(one).removeprefix("/")
        if not is_url(one) and not is_url(name) and PurePath(name).is_relative_to(one):
            return "/".join(PurePath(name).relative_to(one).parts)
    return None


def suffix(name: str) -> str:
    """Return the last suffix of a path or URL in lower case, such as `.gz`."""
    return PurePosixPath(name.partition("?")[0] if is_url(name) else name).suffix.lower()


def _check_sets(files: Sequence[str], where: str) -> None:
    """Raise UserError if files of a set are missing, from 0 on or from 1 on."""
    sets = defaultdict(set)
    for file in files:
        if found := NUMBERED.fullmatch(file):
            begin, number, of, count, end = found.groups()
            sets[begin, of, count, end or ""].add(int(number))
    for (begin, of, count, end), numbers in sets.items():
        first = 1 if int(count) in numbers and 0 not in numbers else 0
        known = [first - 1, *sorted(number for number in numbers if number < first + int(count)), first + int(count)]
        gaps = [(before + 1, after - 1) for before, after in pairwise(known) if after - before > 1]
        if gaps:
            missing = ", ".join(f"{least}" if least == most else f"{least}-{most}" for least, most in gaps)
            raise UserError(
                f"{where}: of the {int(count)} files {begin.rpartition('/')[2]}*{of}{count}{end} these are missing: {missing}. "
                "Download them, or give `partial` to prepare the others alone"
            )


def _local(name: str) -> Path | None:
    """The path that is meant; None for a URL that needs a server."""
    if not is_url(name):
        return Path(name)
    if not name.startswith(LOCAL):
        return None
    path = name.removeprefix(LOCAL).removeprefix("localhost")
    if os.path.exists(path):  # Names with a percent sign are often not quoted.
        return Path(path)
    return Path(unquote(path))


def _expanded(name: str) -> list[str]:
    """The names that braces in a URL stand for. Raises UserError if there are more than MAX_NAMES."""
    if not is_url(name) or "{" not in name:
        return [str(_local(name) or name)]
    # braceexpand holds all numbers of a range in memory
    ranges = (abs(int(end) - int(begin)) // int(step or 1) for begin, end, step in RANGE.findall(name))
    if max(ranges, default=0) >= MAX_NAMES or len(names := list(islice(braceexpand(name), MAX_NAMES + 1))) > MAX_NAMES:
        raise UserError(f"{name}: its braces stand for more than {MAX_NAMES:,} names: give fewer numbers, or a folder")
    return names


Found = tuple[list[ListedFile], list[ListedFile]]  # Files to read, skipped files.


def _find(path: Path, patterns: Sequence[str], recursive: bool) -> Found | None:
    """List a file or folder. Returns None if it does not exist.

    Links to folders and unfinished preparations are not entered.
    """
    if path.is_file():
        return [ListedFile(str(path))], []
    if not path.is_dir():
        return None
    matches = _matcher(patterns)
    found: list[Path] = []
    skipped: list[str] = []

    def refuse(error: OSError) -> None:
        raise error

    for folder, inside, names in os.walk(path, onerror=refuse):
        others = []
        entered = []
        for name in inside:
            if os.path.islink(os.path.join(folder, name)):
                others += _linked_files(folder, name, path)
            elif recursive and not name.endswith(PARTIAL):
                entered.append(name)
            else:
                others.append(f"{name}/")
        inside[:] = entered
        for name in names:
            if matches(name):
                found.append(Path(folder, name))
            else:
                others.append(name)
        skipped += [os.path.join(folder, name) for name in others if not _is_hidden(os.path.relpath(folder, path), name)]
    # Broken links stay in the list: reading them raises an error.
    files = [each for each in sorted(found) if each.is_file() or not each.exists()]
    return [ListedFile(str(file)) for file in files], [ListedFile(name) for name in sorted(skipped)]


def _linked_files(folder: str, name: str, given: Path) -> list[str]:
    """Return the files in a folder behind a link, relative to the folder that has the link.

    Args:
        folder: Folder with the link.
        name: Name of the link.
        given: The input. If the link leads to files of the input itself, only the link is returned.
    """
    link = os.path.join(folder, name)
    target = os.path.realpath(link)
    own = os.path.realpath(given)
    if os.path.commonpath([target, own]) in (target, own):
        return [f"{name}/"]
    found = []
    for linked, _, names in os.walk(link):
        found += [os.path.relpath(os.path.join(linked, each), folder) for each in names]
    return found or [f"{name}/"]


def _is_hidden(folder: str, name: str) -> bool:
    """Whether a file is hidden, or in a hidden folder. `folder` is relative to the input."""
    return any(part.startswith(".") and part != "." for part in [*folder.split(os.sep), name])


def _matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that tells whether a name matches one of these patterns, ignoring case."""
    pattern = re.compile("|".join(map(translate, patterns)), re.IGNORECASE)
    return lambda name: pattern.match(name) is not None


def _find_remote(url: str, patterns: Sequence[str], recursive: bool) -> Found | None:
    """List a file or folder on a server. Returns None if it is known not to exist without reading it."""
    folder, slash, pattern = url.rpartition("/")
    has_own_pattern = "*" in pattern
    if has_own_pattern:
        url = folder + slash
        patterns = (pattern,)
        recursive = False
    system, path = file_system(url)
    attempts = Attempts(url)
    if is_http(url):
        kind = "directory" if url.endswith("/") else "file"
    else:
        try:
            kind = attempts.run(lambda: system.info(path)["type"])
        except FileNotFoundError:
            return None
    if kind == "file":
        return [ListedFile(url)], []
    found: list[ListedFile] = []
    skipped: list[ListedFile] = []
    matches = _matcher(patterns)
    for file in _walk_remote(url, system, path, attempts, recursive):
        folder, _, name = file.name.removesuffix("/").removeprefix(path).rpartition("/")
        is_link = is_http(url) and (not file.name.startswith(path) or "?" in name)  # Link to another page.
        if matches(name) and not file.name.endswith("/"):
            found.append(file)
        elif not has_own_pattern and not is_link and not _is_hidden(folder, name):
            skipped.append(file)
    sorted_files = [sorted(files, key=lambda file: file.name.split("/")) for files in (found, skipped)]  # Sorted like paths.
    named = [[ListedFile(system.unstrip_protocol(file.name), file.size) for file in files] for files in sorted_files]
    return named[0], named[1]


def _walk_remote(url: str, system: Any, path: str, attempts: Attempts, recursive: bool) -> Iterator[ListedFile]:
    """Yield the files in a folder on a server, named without protocol. Folders that are not entered end with a slash.

    Args:
        url: URL of the folder.
        system: File system of the server, by fsspec.
        path: Path of the folder on the server.
        attempts: Attempts to reach the server.
        recursive: Whether to enter folders in it.

    Raises:
        UserError: Folders are nested too deeply.
    """
    limit = within(url, LISTING_TIMEOUTS * attempts.retries.timeout)
    folders = [path]
    while folders:
        folder = folders.pop()  # the deepest: one that contains itself is noticed at once
        if folder.count("/") - path.count("/") > MAX_DEPTH:
            raise UserError(
                f"{url}: folders more than {MAX_DEPTH} deep, its listings contain themselves: give the folders or files in it"
            )
        for entry in attempts.run(lambda: system.ls(folder, detail=True, **limit)):  # noqa: B023  # called at once
            name = entry["name"]
            if is_http(url) and ".." in name.split("/"):  # a link of the page that leads elsewhere
                continue
            is_inside = name.startswith(folder) and len(name) > len(folder)
            if entry["type"] != "directory":
                yield ListedFile(name, entry.get("size"))
            elif is_inside and recursive:
                folders.append(name)
            elif is_inside:
                yield ListedFile(f"{name.rstrip('/')}/", 0)

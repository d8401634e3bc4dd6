"""Lists folders on this machine."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import translate
from pathlib import Path
from typing import NamedTuple

from megatape.data.io.listing import ListedFile

# Suffix of the folder in which a data directory is prepared.
PARTIAL = ".partial"


class FolderContent(NamedTuple):
    """Files in a folder.

    Attributes:
        files: Files to read, sorted by path.
        skipped: Other files unless hidden, and folders not searched.
    """

    files: list[ListedFile]
    skipped: list[ListedFile]


def find_local(path: Path, patterns: Sequence[str], recursive: bool) -> FolderContent | None:
    """List a file or folder. Links to folders and unfinished preparations are not entered.

    Args:
        path: Path of the file or folder.
        patterns: File names to read in a folder.
        recursive: Whether to search subfolders.

    Returns:
        None if the path does not exist.
    """
    if path.is_file():
        return FolderContent([ListedFile(str(path))], [])
    if not path.is_dir():
        return None
    matches = name_matcher(patterns)
    matching: list[str] = []
    skipped: list[str] = []
    for folder in _walk(path, recursive):
        # Names of files have no leading "./", which Path removes.
        prefix = _prefix(str(Path(folder.path)))
        others = folder.skipped
        regular_files = _regular_files(folder.path)
        for name in folder.files:
            if matches(name):
                file = prefix + name
                # A broken link stays in the list, so that reading it raises an error. A pipe or a device does not.
                if name in regular_files or os.path.isfile(file) or not os.path.exists(file):
                    matching.append(file)
            else:
                others.append(name)
        relative_folder = os.path.relpath(folder.path, path)
        skipped += [os.path.join(folder.path, name) for name in others if not is_hidden(relative_folder, name)]
    files = sorted(matching, key=_parts)
    return FolderContent([ListedFile(file) for file in files], [ListedFile(name) for name in sorted(skipped)])


def _regular_files(folder: str) -> set[str]:
    """Return the names of the regular files in a folder, without links. One listing takes the place of a call for each file."""
    with os.scandir(folder) as entries:
        return {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}


def _prefix(folder: str) -> str:
    """Return the beginning of the paths of files in a folder, given a path that Path has normalized."""
    if folder == os.curdir:
        return ""
    return os.path.join(folder, "")


def _parts(path: str) -> list[str]:
    return path.split(os.sep)


class _WalkedFolder(NamedTuple):
    """A folder entered by a walk, with the names of its files.

    `skipped` names subfolders not entered, ending with a slash, and files behind links.
    """

    path: str
    files: list[str]
    skipped: list[str]


def _walk(root: Path, recursive: bool) -> Iterator[_WalkedFolder]:
    """Yield a folder and, if `recursive`, its subfolders. Raises OSError if one cannot be listed."""

    def fail(error: OSError) -> None:
        raise error

    for folder, subfolders, files in os.walk(root, onerror=fail):
        skipped = []
        entered = []
        for name in subfolders:
            if os.path.islink(os.path.join(folder, name)):
                skipped += _linked_files(folder, name, root)
            elif recursive and not name.endswith(PARTIAL):
                entered.append(name)
            else:
                skipped.append(f"{name}/")
        # os.walk enters the subfolders that stay in its list.
        subfolders[:] = entered
        yield _WalkedFolder(folder, files, skipped)


def _linked_files(folder: str, name: str, root: Path) -> list[str]:
    """Return the files behind a link to a folder, relative to the link's folder.

    If the link leads to files of the input itself, whose path is `root`, only the link is returned.
    """
    link = os.path.join(folder, name)
    target = os.path.realpath(link)
    real_root = os.path.realpath(root)
    if os.path.commonpath([target, real_root]) in (target, real_root):
        return [f"{name}/"]
    linked_files = []
    for linked_folder, _, file_names in os.walk(link):
        linked_files += [os.path.relpath(os.path.join(linked_folder, file), folder) for file in file_names]
    return linked_files or [f"{name}/"]


def is_hidden(folder: str, name: str) -> bool:
    """Whether a file is hidden, or in a hidden folder. `folder` is relative to the input."""
    parts = [*folder.split(os.sep), name]
    return any(part.startswith(".") and part != "." for part in parts)


def name_matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return a function telling whether a name matches one of these patterns, ignoring case."""
    pattern = re.compile("|".join(map(translate, patterns)), re.IGNORECASE)
    return lambda name: pattern.match(name) is not None

"""Files in a folder on this machine."""

import os
import re
from collections.abc import Callable, Sequence
from fnmatch import translate
from pathlib import Path

from megatape.data.io.listing import ListedFile

# Suffix of the folder in which a data directory is prepared.
PARTIAL = ".partial"
# Files to read, and skipped files.
Found = tuple[list[ListedFile], list[ListedFile]]


def find_local(path: Path, patterns: Sequence[str], recursive: bool) -> Found | None:
    """List a file or folder. Links to folders and unfinished preparations are not entered.

    Args:
        path: Path of the file or folder.
        patterns: Names of the files to read in a folder.
        recursive: Whether to search folders in the folder.

    Returns:
        None if the path does not exist.
    """
    if path.is_file():
        return [ListedFile(str(path))], []
    if not path.is_dir():
        return None
    matches = name_matcher(patterns)
    found: list[Path] = []
    skipped: list[str] = []

    def fail(error: OSError) -> None:
        raise error

    for folder, subfolders, names in os.walk(path, onerror=fail):
        others = []
        entered = []
        for name in subfolders:
            if os.path.islink(os.path.join(folder, name)):
                others += _linked_files(folder, name, path)
            elif recursive and not name.endswith(PARTIAL):
                entered.append(name)
            else:
                others.append(f"{name}/")
        subfolders[:] = entered
        for name in names:
            if matches(name):
                found.append(Path(folder, name))
            else:
                others.append(name)
        relative_folder = os.path.relpath(folder, path)
        skipped += [os.path.join(folder, name) for name in others if not is_hidden(relative_folder, name)]
    # Broken links stay in the list: reading them raises an error.
    files = [file for file in sorted(found) if file.is_file() or not file.exists()]
    return [ListedFile(str(file)) for file in files], [ListedFile(name) for name in sorted(skipped)]


def _linked_files(folder: str, name: str, given: Path) -> list[str]:
    """Return the files in a folder behind a link, relative to the folder that contains the link.

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


def is_hidden(folder: str, name: str) -> bool:
    """Whether a file is hidden, or in a hidden folder. folder: folder of the file, relative to the input."""
    parts = [*folder.split(os.sep), name]
    return any(part.startswith(".") and part != "." for part in parts)


def name_matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that tells whether a name matches one of these patterns, ignoring case."""
    pattern = re.compile("|".join(map(translate, patterns)), re.IGNORECASE)
    return lambda name: pattern.match(name) is not None

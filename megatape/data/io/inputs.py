"""Finds the files in a user's inputs: paths and URLs of files and folders."""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import islice, pairwise
from pathlib import PurePath
from typing import NamedTuple

from braceexpand import braceexpand

from megatape.data.io.files import is_url, local_path
from megatape.data.io.listing import Listing, check_skipped, wanted
from megatape.data.io.local_folder import find_local
from megatape.data.io.remote_folder import find_remote
from megatape.errors import MissingPath, UserError, flag

# Range in braces: first number, last number and step.
RANGE = re.compile(r"\{(-?\d+)\.\.(-?\d+)(?:\.\.-?0*([1-9]\d*))?")
# File of a set, such as c4-train.00000-of-01024.json.gz.
NUMBERED = re.compile(r"(.*?)(\d+)([-_]of[-_])(\d+)(?:-[0-9a-f]{16})?(\D.*)?")
# Maximum number of names to expand braces to.
MAX_NAMES = 100_000


def find_files(
    inputs: Sequence[str], *patterns: str, recursive: bool = True, option: str = "input", partial: bool = True
) -> list[str]:
    """Return the files among the inputs, and the matching files in folders, sorted by path within each.

    Args:
        inputs: Files and folders, see `list_inputs`.
        patterns: File names to read in folders.
        recursive: Whether to search subfolders.
        option: Option of the inputs, for errors.
        partial: Whether a folder may lack files of a set whose names contain its size. Files given by name are not checked.

    Raises:
        MissingPath: An input does not exist.
        UserError: A folder has no match or only a part of a set, a file is given twice, or a protocol is unknown.
        ModuleNotFoundError: The package of a protocol is not installed.
    """
    listings = list_inputs(inputs, *patterns, recursive=recursive, option=option)
    return listed_files(listings, option=option, partial=partial)


def list_inputs(inputs: Sequence[str], *patterns: str, recursive: bool = True, option: str = "input") -> list[Listing]:
    """List the content of inputs.

    In URLs, braces are expanded, as shells do in paths, and so is * in the last part. A folder on a web server is a URL ending
    with a slash.

    Args:
        inputs: Files and folders.
        patterns: File names to read in folders, ignoring case. Files given as inputs may have any name.
        recursive: Whether to search subfolders.
        option: Option of the inputs, for errors.

    Returns:
        One listing per file or folder, in order.

    Raises:
        MissingPath: An input does not exist.
        UserError: A folder has no match, or a protocol is unknown.
        ModuleNotFoundError: The package of a protocol is not installed.
    """
    listings = []
    for user_input in inputs:
        for name in _expand(user_input):
            path = local_path(name)
            if path is not None:
                content = find_local(path, patterns, recursive)
            else:
                content = find_remote(name, patterns, recursive)
            if content is None:
                raise MissingPath(f"{flag(option)} {name}: no such file or directory")
            if not content.files:
                raise UserError(f"{flag(option)} {name}: no file named {wanted(patterns)} in this directory")
            is_folder = [file.name for file in content.files] != [name]
            listings.append(Listing(user_input, content.files, content.skipped, patterns, is_folder))
    return listings


def listed_files(
    listings: Sequence[Listing], option: str = "input", partial: bool = True, max_skipped_fraction: float = 1.0
) -> list[str]:
    """Return the files to read.

    Args:
        listings: Content of the inputs.
        option: Option of the inputs, for errors.
        partial: Whether a folder may lack files of a set whose names contain its size. Files given by name are not checked.
        max_skipped_fraction: Maximum fraction of a folder's files or bytes to skip because of their names.

    Raises:
        UserError: A folder has only a part of a set or too many skipped files, or a file is given twice.
    """
    files: list[str] = []
    for listing in listings:
        if not partial and listing.is_folder:
            _check_sets(listing.names, f"{flag(option)} {listing.user_input}")
        check_skipped(listing, max_skipped_fraction, option)
        files += listing.names
    check_distinct(files, option)
    return files


def check_distinct(files: Iterable[str], option: str) -> None:
    """Raise UserError if a file or URL is given twice, the second time by `option`."""
    # Many files are in the same folder.
    absolute_folder = cache(os.path.abspath)
    found = set[str]()
    for name in files:
        if not is_url(name):
            folder, file_name = os.path.split(name)
            name = os.path.join(absolute_folder(folder), file_name)
        if name in found:
            raise UserError(f"{flag(option)}: {name} is given twice")
        found.add(name)


def relative(name: str, user_input: str) -> str | None:
    """Return the path of the file `name` relative to an input; empty if it is the input, None if it is not inside."""
    for expanded in _expand(user_input):
        if is_url(expanded) and "*" in expanded and fnmatchcase(name, expanded):
            return ""
        if is_url(expanded) and is_url(name):
            if name == expanded or name.startswith(expanded.rstrip("/") + "/"):
                return name.removeprefix(expanded).removeprefix("/")
        elif not is_url(expanded) and not is_url(name) and PurePath(name).is_relative_to(expanded):
            return "/".join(PurePath(name).relative_to(expanded).parts)
    return None


class _FileSet(NamedTuple):
    """Numbered files of one set, by the parts of their paths: {prefix}{number}{separator, such as -of-}{size}{suffix}."""

    prefix: str
    separator: str
    size: str
    suffix: str

    def __str__(self) -> str:
        return f"{self.prefix.rpartition('/')[2]}*{self.separator}{self.size}{self.suffix}"


def _check_sets(files: Sequence[str], where: str) -> None:
    """Raise UserError if files of a set are missing. Sets are numbered from 0 or from 1 on."""
    numbers_by_set: defaultdict[_FileSet, set[int]] = defaultdict(set)
    for file in files:
        match = NUMBERED.fullmatch(file)
        if match:
            prefix, number, separator, count, suffix = match.groups()
            numbers_by_set[_FileSet(prefix, separator, count, suffix or "")].add(int(number))
    for file_set, numbers in numbers_by_set.items():
        missing = _missing_numbers(numbers, int(file_set.size))
        if missing:
            raise UserError(
                f"{where}: of the {int(file_set.size)} files {file_set} these are missing: "
                f"{', '.join(missing)}. Download them, or give {flag('partial')} to prepare the others alone"
            )


def _missing_numbers(numbers: set[int], size: int) -> list[str]:
    """Return the numbers and ranges missing from a set of this size."""
    first = 0
    if size in numbers and 0 not in numbers:
        first = 1
    present = sorted(number for number in numbers if number < first + size)
    missing = []
    for before, after in pairwise([first - 1, *present, first + size]):
        if after - before == 2:
            missing.append(f"{before + 1}")
        elif after - before > 2:
            missing.append(f"{before + 1}-{after - 1}")
    return missing


def _expand(name: str) -> list[str]:
    """Expand braces in a URL. Raises UserError if there are more than MAX_NAMES names."""
    if not is_url(name) or "{" not in name:
        return [str(local_path(name) or name)]
    # braceexpand keeps all numbers of a range in memory, so check their count first.
    is_too_long = False
    for begin, end, step in RANGE.findall(name):
        if abs(int(end) - int(begin)) // int(step or 1) >= MAX_NAMES:
            is_too_long = True
    if not is_too_long:
        names = list(islice(braceexpand(name), MAX_NAMES + 1))
        if len(names) <= MAX_NAMES:
            return names
    raise UserError(f"{name}: its braces stand for more than {MAX_NAMES:,} names: give fewer numbers, or a folder")

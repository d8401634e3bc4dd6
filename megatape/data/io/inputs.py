"""Inputs that a user gives: paths and URLs of files and folders, with the files found in them."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import islice, pairwise
from pathlib import PurePath

from braceexpand import braceexpand

from megatape.data.io.files import is_url, local_path
from megatape.data.io.listing import Listing, check_skipped, wanted
from megatape.data.io.local_folder import find_local
from megatape.data.io.remote_folder import find_remote
from megatape.errors import MissingPath, UserError

# Range in braces: first and last number, step.
RANGE = re.compile(r"\{(-?\d+)\.\.(-?\d+)(?:\.\.-?0*([1-9]\d*))?")
# File of a set, such as c4-train.00000-of-01024.json.gz.
NUMBERED = re.compile(r"(.*?)(\d+)([-_]of[-_])(\d+)(?:-[0-9a-f]{16})?(\D.*)?")
# Maximum number of names that braces expand to.
MAX_NAMES = 100_000


def find_files(
    inputs: Sequence[str], *patterns: str, recursive: bool = True, option: str = "input", partial: bool = True
) -> list[str]:
    """Return the given files, and the matching files in the given folders, sorted by path within each.

    Args:
        inputs: Files and folders, see `list_inputs`.
        patterns: Names of files in folders.
        recursive: Whether to search folders in folders.
        option: Option that gave the inputs.
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
        for name in _expand(given):
            path = local_path(name)
            if path is not None:
                found = find_local(path, patterns, recursive)
            else:
                found = find_remote(name, patterns, recursive)
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
    """Raise UserError if a file or a URL is given twice. option: option that gave it for the second time."""
    counts = Counter[str]()
    for name in files:
        if not is_url(name):
            name = os.path.abspath(name)
        counts[name] += 1
        if counts[name] > 1:
            raise UserError(f"{option}: {name} is given twice")


def relative(name: str, given: str) -> str | None:
    """Return the path of the file `name` in the input `given`; empty if they are the same, None if it is not inside."""
    for expanded in _expand(given):
        if is_url(expanded) and "*" in expanded and fnmatchcase(name, expanded):
            return ""
        if is_url(expanded) and is_url(name):
            if name == expanded or name.startswith(expanded.rstrip("/") + "/"):
                return name.removeprefix(expanded).removeprefix("/")
        elif not is_url(expanded) and not is_url(name) and PurePath(name).is_relative_to(expanded):
            return "/".join(PurePath(name).relative_to(expanded).parts)
    return None


def _check_sets(files: Sequence[str], where: str) -> None:
    """Raise UserError if files of a set are missing. Sets are numbered from 0 or from 1 on."""
    sets = defaultdict(set)
    for file in files:
        match = NUMBERED.fullmatch(file)
        if match:
            begin, number, of, count, end = match.groups()
            sets[begin, of, count, end or ""].add(int(number))
    for (begin, of, count, end), numbers in sets.items():
        size = int(count)
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
        if missing:
            raise UserError(
                f"{where}: of the {size} files {begin.rpartition('/')[2]}*{of}{count}{end} these are missing: "
                f"{', '.join(missing)}. Download them, or give `partial` to prepare the others alone"
            )


def _expand(name: str) -> list[str]:
    """Expand braces in a URL. Raises UserError if there are more than MAX_NAMES names."""
    if not is_url(name) or "{" not in name:
        return [str(local_path(name) or name)]
    # braceexpand holds all numbers of a range in memory, so check their count first.
    is_too_long = False
    for begin, end, step in RANGE.findall(name):
        if abs(int(end) - int(begin)) // int(step or 1) >= MAX_NAMES:
            is_too_long = True
    if not is_too_long:
        names = list(islice(braceexpand(name), MAX_NAMES + 1))
        if len(names) <= MAX_NAMES:
            return names
    raise UserError(f"{name}: its braces stand for more than {MAX_NAMES:,} names: give fewer numbers, or a folder")

"""Listings of inputs: files to read, and files skipped because of their names."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from megatape.data.printable import printable
from megatape.errors import UserError, flag
from megatape.utils.text.units import plural

# Maximum number of names to show for an input.
NUM_NAMES = 10
# Files accompanying data, without documents. They are reported, but do not count towards the limit.
# The pattern for licenses includes British spelling.
COMPANIONS = ("readme*", "licen[cs]e*", "_*", "*.md5", "*.sha1", "*.sha256", "md5sum*", "sha1sum*", "sha256sum*")
# Folder of an unfinished preparation, often the one being resumed. It is reported, but does not count towards the limit.
UNFINISHED = "*.partial/"


class ListedFile(NamedTuple):
    """File or folder in an input.

    Attributes:
        name: Path or URL. Folders end with a slash.
        size: Size in bytes; None if the listing does not tell.
    """

    name: str
    size: int | None = None


@dataclass(frozen=True)
class Listing:
    """Content of an input.

    Attributes:
        user_input: Path or URL, as the user wrote it.
        files: Files to read, sorted by path.
        skipped: Other files unless hidden, and folders not searched, such as links.
        patterns: File names to read.
        is_folder: Whether the input is a folder, or a URL with a pattern.
    """

    user_input: str
    files: list[ListedFile]
    skipped: list[ListedFile] = field(default_factory=list)
    patterns: tuple[str, ...] = ()
    is_folder: bool = False

    @property
    def names(self) -> list[str]:
        """Paths or URLs of the files to read."""
        return [file.name for file in self.files]

    def select(self, is_read: Callable[[str], bool]) -> "Listing":
        """Return a listing that also skips the files for which `is_read`, called with a path or URL, returns False."""
        files = [file for file in self.files if is_read(file.name)]
        more_skipped = [file for file in self.files if not is_read(file.name)]
        return replace(self, files=files, skipped=self.skipped + more_skipped)

    def without(self, is_known: Callable[[str], bool]) -> "Listing":
        """Return a listing without the skipped files that `is_known` recognizes by the last part of their paths."""
        skipped = [file for file in self.skipped if not is_known(base_name(file.name))]
        return replace(self, skipped=skipped)


@dataclass
class SkippedFiles:
    """Summary of an input's files skipped because of their names.

    Attributes:
        files: Number of files.
        bytes: Total size, as far as known.
        names: Names of the first files.
    """

    files: int = 0
    bytes: int = 0
    names: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        names = ", ".join(self.names)
        hidden = self.files - len(self.names)
        if hidden:
            names += f" and {hidden:,} more"
        return f"{plural(self.files, 'file')} ({self.bytes:,} bytes) skipped by name: {names}"

    def add(self, files: Iterable[ListedFile]) -> None:
        """Add further files."""
        for file in files:
            self.files += 1
            self.bytes += file_size(file) or 0
            if len(self.names) < NUM_NAMES:
                self.names.append(base_name(file.name))


def summarize_skipped(listings: Iterable[Listing]) -> dict[str, SkippedFiles]:
    """Return a summary of the skipped files, by input. Inputs without any are omitted."""
    summaries: dict[str, SkippedFiles] = {}
    for listing in listings:
        if listing.skipped:
            summaries.setdefault(listing.user_input, SkippedFiles()).add(listing.skipped)
    return summaries


def check_skipped(listing: Listing, max_fraction: float, option: str) -> None:
    """Check an input's fraction of skipped files, by number and by size.

    Args:
        listing: Content of the input.
        max_fraction: Maximum fraction of files or bytes to skip.
        option: Option of the input, for the error.

    Raises:
        UserError: A larger fraction is skipped.
    """
    others = [file for file in listing.skipped if not _is_companion(file.name)]
    if not others or max_fraction >= 1:
        return
    num_files = len(others) + len(listing.files)
    fraction = len(others) / num_files
    amount = f"{len(others):,} of {num_files:,} files"
    sizes = _sizes(listing.files)
    other_sizes = _sizes(others)
    if sizes is not None and other_sizes is not None:
        num_bytes = sum(sizes) + sum(other_sizes)
        byte_fraction = sum(other_sizes) / max(num_bytes, 1)
        amount += f" and {sum(other_sizes):,} of {num_bytes:,} bytes"
        fraction = max(fraction, byte_fraction)
    if fraction <= max_fraction:
        return
    names = ", ".join(base_name(file.name) for file in others[:NUM_NAMES])
    if len(others) > NUM_NAMES:
        names += f" and {len(others) - NUM_NAMES:,} more"
    raise UserError(
        f"{flag(option)} {listing.user_input}: {amount} would be skipped, more than {flag('max_skipped_fraction')} "
        f"{max_fraction:g}, because they are not named {wanted(listing.patterns)}: {names}. Rename them or give them one by "
        f"one to read them, or raise {flag('max_skipped_fraction')}"
    )


def wanted(patterns: Sequence[str]) -> str:
    """Return the first patterns, for messages."""
    text = " or ".join(patterns[:4])
    if len(patterns) > 4:
        text += " or the like"
    return text


def file_size(file: ListedFile) -> int | None:
    """Return the size of a listed file in bytes; None if it is unknown. Folders and broken links have 0."""
    if file.size is not None or "://" in file.name:
        return file.size
    try:
        status = os.stat(file.name)
    except OSError:
        return 0
    if file.name.endswith("/"):
        return 0
    return status.st_size


def base_name(name: str) -> str:
    """Return the last part of a path or URL, with unprintable characters escaped. Folders keep their slash."""
    last = printable(name.rstrip("/").rpartition("/")[2])
    if name.endswith("/"):
        last += "/"
    return last


def _sizes(files: Iterable[ListedFile]) -> list[int] | None:
    """Return the sizes of files; None if one is unknown."""
    sizes = [file_size(file) for file in files]
    if None in sizes:
        return None
    return [size or 0 for size in sizes]


def _is_companion(name: str) -> bool:
    """Whether a file accompanies data without having documents, or belongs to an unfinished preparation."""
    lower = base_name(name).lower()
    return any(fnmatchcase(lower, pattern) for pattern in (*COMPANIONS, UNFINISHED))

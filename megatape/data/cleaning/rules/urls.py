"""Drops documents by their URLs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
from xxhash import xxh3_64_intdigest

from megatape.data.cleaning.rule import DocumentDropped, DocumentRule, files_of
from megatape.data.cleaning.word_runs import contains
from megatape.data.sources.document import Document
from megatape.errors import UserError

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# Domain or IP address. Entries of other kinds of lists contain other characters.
DOMAIN = re.compile(r"[\w:-][\w.:-]*")
# Maximum number of host labels and path segments to look up, which keeps long URLs cheap.
MAX_LOOKUPS = 32


class _SplitUrl(NamedTuple):
    """Host of a URL, and its path with the query, without a final slash in the path."""

    host: str
    path: str


@dataclass(frozen=True)
class Urls(DocumentRule):
    """Drops documents whose URL is in a `block` list, or in none of the `allow` lists if there are any.

    A list is a text file, or a folder of text files, with one entry per line: a domain, including its subdomains, or a domain
    with a path, including everything below it. Empty lines and lines starting with # are ignored.

    Attributes:
        block: Files and folders listing URLs to drop.
        allow: Files and folders listing URLs to keep.
    """

    block: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.paths:
            raise UserError("give lists to `block` or to `allow`")

    @property
    def needs(self) -> tuple[str, ...]:
        return ("url",)

    @property
    def paths(self) -> tuple[str, ...]:
        return self.block + self.allow

    def check(self) -> None:
        _read(self.paths)

    @cached_property
    def _blocked(self) -> np.ndarray:
        """Hashes of blocked entries, sorted, uint64. A set would take eight times the memory."""
        return _read(self.block)

    @cached_property
    def _allowed(self) -> np.ndarray:
        """Hashes of allowed entries, sorted, uint64."""
        return _read(self.allow)

    def clean(self, document: Document) -> str:
        try:
            hashes = np.array([_hash(entry) for entry in _entries_of(document.url)], np.uint64)
        except ValueError:
            # The document has no valid URL.
            hashes = np.empty(0, np.uint64)
        if contains(self._blocked, hashes):
            raise DocumentDropped("blocked")
        if self.allow and not contains(self._allowed, hashes):
            raise DocumentDropped("not allowed")
        return document.text


def _read(names: tuple[str, ...]) -> np.ndarray:
    """Return the hashes of all entries in some lists, sorted, uint64. Raises UserError for an invalid line."""
    hashes = []
    for name in names:
        for path in files_of(name):
            hashes += [_hash(entry) for entry in _entries(path)]
    return np.unique(np.array(hashes, np.uint64))


def _entries(path: Path) -> Iterator[str]:
    """Yield the entries of a list, without schemes."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            entry = line.strip()
            if not entry or entry.startswith("#"):
                continue
            try:
                url = _split(entry)
            except ValueError:
                url = _SplitUrl("", "")
            if not DOMAIN.fullmatch(url.host) or len(entry.split()) > 1:
                raise UserError(f"{path}:{number}: {entry!r:.80} is not a domain or a URL: correct the line")
            yield url.host + url.path


def _split(url: str) -> _SplitUrl:
    """Split a URL, with or without scheme. Raises ValueError if it is malformed."""
    if not SCHEME.match(url):
        url = f"//{url}"
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    path = parts.path.rstrip("/")
    if parts.query:
        path += f"?{parts.query}"
    return _SplitUrl(host, path)


def _entries_of(url: str) -> Iterator[str]:
    """Yield all entries that would include a URL. Raises ValueError if it is malformed."""
    host, full_path = _split(url)
    labels = host.split(".")
    segments = full_path.partition("?")[0].split("/")
    num_paths = min(len(segments), MAX_LOOKUPS)
    paths = {"/".join(segments[:count]) for count in range(1, num_paths + 1)}
    paths.add(full_path)
    for first in range(max(0, len(labels) - MAX_LOOKUPS), len(labels)):
        domain = ".".join(labels[first:])
        for path in paths:
            yield domain + path


def _hash(entry: str) -> int:
    return xxh3_64_intdigest(entry.encode(errors="replace"))

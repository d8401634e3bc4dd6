"""Documents from some parts of the web."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlsplit

import numpy as np
from xxhash import xxh3_64_intdigest

from megatape.data.cleaning.rule import DocumentDropped, DocumentRule, files_of
from megatape.data.cleaning.word_runs import contains
from megatape.data.sources.document import Document
from megatape.errors import UserError

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
DOMAIN = re.compile(r"[\w:-][\w.:-]*")  # or an address; entries of other kinds of list have other characters
MAX_PARTS = 32  # of a host or a path that are looked for, so that the time is linear


@dataclass(frozen=True)
class Urls(DocumentRule):
    """The URL of a document is in no list of `block`, and in a list of `allow` if there are any.

    A list is a text file, or a folder of them, with an entry a line: a domain, which stands for its subdomains too, or a domain
    with a path, which stands for all below it. Empty lines, and those that begin with #, do not count.
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
    def _lists(self) -> tuple[np.ndarray, np.ndarray]:
        """Hashes of the entries to block and to allow, sorted, uint64: an eighth of the memory of a set."""
        return _read(self.block), _read(self.allow)

    def clean(self, document: Document) -> str:
        try:
            hashes = np.array([_hash(entry) for entry in _entries_of(document.url)], np.uint64)
        except ValueError:  # no URL
            hashes = np.empty(0, np.uint64)
        block, allow = self._lists
        if contains(block, hashes):
            raise DocumentDropped("blocked")
        if self.allow and not contains(allow, hashes):
            raise DocumentDropped("not allowed")
        return document.text


def _read(names: tuple[str, ...]) -> np.ndarray:
    """Hashes of the entries of lists. Raises UserError naming a line that is none."""
    hashes = []
    for path in (path for name in names for path in files_of(name)):
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, start=1):
                entry = line.strip()
                if entry and not entry.startswith("#"):
                    try:
                        host, rest = _parts(entry)
                    except ValueError:
                        host = ""
                    if not DOMAIN.fullmatch(host) or len(entry.split()) > 1:
                        raise UserError(f"{path}:{number}: {entry!r:.80} is not a domain or a URL: correct the line")
                    hashes.append(_hash(host + rest))
    return np.unique(np.array(hashes, np.uint64))


def _parts(url: str) -> tuple[str, str]:
    """Host of a URL, with or without its scheme, and what follows, without the last slash. Raises ValueError."""
    parts = urlsplit(url if SCHEME.match(url) else f"//{url}")
    return (parts.hostname or "").rstrip("."), parts.path.rstrip("/") + (f"?{parts.query}" if parts.query else "")


def _entries_of(url: str) -> Iterator[str]:
    """All entries that stand for a URL. Raises ValueError if it is none."""
    host, rest = _parts(url)
    labels = host.split(".")
    names = rest.partition("?")[0].split("/")
    rests = {"/".join(names[:count]) for count in range(1, min(len(names), MAX_PARTS) + 1)} | {rest}
    for first in range(max(0, len(labels) - MAX_PARTS), len(labels)):
        for end in rests:
            yield ".".join(labels[first:]) + end


def _hash(entry: str) -> int:
    return xxh3_64_intdigest(entry.encode(errors="replace"))

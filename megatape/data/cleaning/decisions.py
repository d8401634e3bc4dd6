"""Which documents of a source are written, whoever reads them and when.

First the rules that judge a text by itself decide, in the order given, each on what the one before it has left. Of the texts
that remain, those go that equal an earlier one, then those that resemble one. Earlier ones that go for either reason count too.

One process keeps hashes and keys of the only unit in memory. With several units a first pass writes the verdicts of the rules
on each, with hashes and keys. One process compares them all, in parts that bound its memory, and the second pass replays this
on the same documents, by their hashes.
"""

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from megatape.data.cleaning.cleaning import Cleaning
from megatape.data.cleaning.duplicates import HASH_BYTES, document_hash, pack_hashes, repeated, seen_before
from megatape.data.cleaning.rule import Dropped
from megatape.errors import UserError

DUPLICATES, NEAR_DUPLICATES = "duplicates", "near_duplicates"
AS_IT_IS, CHANGED = 0, 1  # codes of documents that stay; those of the others are CHANGED plus the number of a reason

Judge = Callable[[str], str]  # what is written of a text; raises Dropped. It is asked about all documents of a unit in order


def judge_at_once(cleaning: Cleaning, drop_duplicates: bool) -> Judge:
    """For the documents of the only unit."""
    is_duplicate = seen_before() if drop_duplicates else lambda text: False
    near = cleaning.near_duplicates
    known: list[set[int]] = [set() for _ in range(near.shape[0])] if near else []

    def judge(text: str) -> str:
        text = cleaning.apply(text)
        if is_duplicate(text):
            raise Dropped(DUPLICATES)
        if near is not None:
            keys = near.keys(text).tolist()
            resembles = any(key in band for band, key in zip(known, keys, strict=True))
            for band, key in zip(known, keys, strict=True):
                band.add(key)
            if resembles:
                raise Dropped(NEAR_DUPLICATES)
        return text

    return judge


class FirstPass:
    """The verdicts of the rules on the documents of a unit, and what decides about the others."""

    def __init__(self, cleaning: Cleaning, drop_duplicates: bool) -> None:
        self._cleaning, self._drop_duplicates, self._near = cleaning, drop_duplicates, cleaning.near_duplicates
        self._reasons: dict[str, int] = {}
        self._codes = array("I")  # of each document
        self._texts = bytearray()  # hashes of all documents as they were read
        self._hashes = bytearray()  # of those that the rules leave
        self._keys: list[np.ndarray] = []

    def add(self, text: str) -> None:
        """The next document."""
        text_hash = document_hash(text)
        self._texts += text_hash
        try:
            left = self._cleaning.apply(text)
        except Dropped as reason:
            self._codes.append(CHANGED + self._reasons.setdefault(str(reason), len(self._reasons) + 1))
            return
        self._codes.append(AS_IT_IS if left == text else CHANGED)
        if self._drop_duplicates:
            self._hashes += text_hash if left == text else document_hash(left)
        if self._near is not None:
            self._keys.append(self._near.keys(left))

    def content(self) -> bytes:
        """What `compare` and `SecondPass` read, as .npz."""
        arrays: dict[str, Any] = {
            "codes": np.array(self._codes, np.uint32),
            "reasons": np.array(list(self._reasons), np.str_),
            "texts": pack_hashes(self._texts),
        }
        if self._drop_duplicates:
            arrays["hashes"] = pack_hashes(self._hashes)
        if self._near is not None:
            keys = np.array(self._keys, np.uint64).reshape(-1, self._near.shape[0])
            arrays |= {f"band{number}": keys[:, number : number + 1] for number in range(self._near.shape[0])}
        return _packed(arrays)


def compare(files: Sequence[Path], beat: Callable[[], None]) -> bytes:
    """Which documents equal or resemble an earlier one, given what the first pass wrote of each unit.

    beat: called again and again. Memory: about 50 bytes for each of at most 2^26 hashes, and 2 bytes for each document.
    """
    with np.load(files[0], allow_pickle=False) as first:
        bands = [name for name in first.files if name.startswith("band")]
        names = {DUPLICATES: ["hashes"] if "hashes" in first.files else [], NEAR_DUPLICATES: bands}
    found: dict[str, np.ndarray] = {}
    for reason, keys in names.items():
        for name in keys:
            parts = repeated([partial(_load, file, name) for file in files], beat=beat)
            found[reason] = found[reason] | parts if reason in found else parts
    ends = np.cumsum([np.count_nonzero(_load(file, "codes") <= CHANGED) for file in files])
    arrays: dict[str, Any] = {
        f"{reason}-{number}": np.packbits(part)
        for reason, flags in found.items()
        for number, part in enumerate(np.split(flags, ends[:-1]))
    }
    return _packed(arrays)


class SecondPass:
    """Applies what `FirstPass` and `compare` have decided to the documents of a unit, which must be the same as then.

    Args:
        first_pass, compared: files with what they have written.
        number: of the unit among all.
        unit: its name in messages.
    """

    def __init__(self, cleaning: Cleaning, first_pass: Path, compared: Path, number: int, unit: str) -> None:
        self._cleaning, self._unit, self._folder = cleaning, unit, first_pass.parents[1]
        with np.load(first_pass, allow_pickle=False) as content:
            codes, self._reasons, self._texts = content["codes"], content["reasons"].tolist(), content["texts"].tobytes()
        survivors = np.flatnonzero(codes <= CHANGED)
        with np.load(compared, allow_pickle=False) as found:
            for reason in (NEAR_DUPLICATES, DUPLICATES):  # a document that does both is counted among the duplicates
                if (name := f"{reason}-{number}") in found.files:
                    self._reasons.append(reason)
                    repeats = np.unpackbits(found[name], count=survivors.size).astype(bool)
                    codes[survivors[repeats]] = CHANGED + len(self._reasons)
        self._codes, self._judged = codes.tolist(), 0

    def judge(self, text: str) -> str:
        """What is written of the next document. Raises Dropped, or UserError if the first pass has read another one there."""
        first, self._judged = self._judged, self._judged + 1
        if document_hash(text) != self._texts[first * HASH_BYTES : self._judged * HASH_BYTES]:
            raise self._changed(f"document {self._judged:,} is another one")
        code = self._codes[first]
        if code > CHANGED:
            raise Dropped(self._reasons[code - CHANGED - 1])
        return self._cleaning.edit(text) if code == CHANGED else text

    def close(self) -> None:
        """Raise UserError if documents of the first pass are missing."""
        if self._judged < len(self._codes):
            raise self._changed(f"{self._judged:,} documents are left of {len(self._codes):,}")

    def _changed(self, how: str) -> UserError:
        return UserError(
            f"{self._unit}: has changed since it was first read: {how}. What is decided about the others depends on it: remove "
            f"{self._folder} to begin again"
        )


def _load(file: Path, name: str) -> np.ndarray:
    with np.load(file, allow_pickle=False) as content:
        array: np.ndarray = content[name]
        return array


def _packed(arrays: dict[str, Any]) -> bytes:
    file = BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()

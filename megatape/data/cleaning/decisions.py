"""Decisions about the documents of a source: kept or dropped, by any number of processes.

First the rules that decide about each text on its own apply in the order given, each to the text that
the one before it has left. Exact duplicates are dropped next, then near duplicates of kept documents.

One process keeps hashes and keys of the only unit in memory (`OnePass`). With several units,
`FirstPass` keeps those of each, processes compare them all (`compare`, then `near_drops`), and the
result decides which of the tokenized documents are written (prepare/unit.py).
"""

import logging
import time
import zlib
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from megatape.data.cleaning.near_duplicates import Bucket, NearDuplicates
from megatape.data.cleaning.rule import DocumentDropped, DocumentRule, Rule, ScoreRule, UnitRule
from megatape.data.printable import printable
from megatape.data.shards.hashes import document_hash
from megatape.data.sources.document import Decision, Document
from megatape.errors import UserError

LOG = logging.getLogger(__name__)

DUPLICATES = "duplicates"
NEAR_DUPLICATES = "near_duplicates"
PAIRS = "pairs"  # Name of the array in the results of `compare`.
# files of FirstPass
KEYS = "keys.npz"
RUNS = "runs.u4"
RUN_ENDS = "run_ends.npy"
# codes of documents that the rules keep: REPEATED if its unit has an earlier one that is equal
KEEP = 0
REPEATED = 1
# Errors that numpy.load raises for corrupted files.
CORRUPTED_ARRAYS = (ValueError, KeyError, EOFError, NotImplementedError, BadZipFile, zlib.error)
SLOW = 5.0  # processor seconds of a rule for a document: the user is told its name
AT_ONCE = 2**25  # hashes that are compared at a time, of which each takes about 50 bytes
MAPPED = 1024  # units whose runs are mapped into memory
Append = Callable[[str, bytes | memoryview], None]  # Appends content to the file of this name.


@dataclass(frozen=True)
class Cleaning:
    """How the documents of a source are cleaned.

    Attributes:
        rules: Rules by their names. Near duplicates come last in any order.
        drop_duplicates: Whether documents that equal an earlier one are dropped.
    """

    rules: Mapping[str, Rule] = field(default_factory=dict)
    drop_duplicates: bool = True

    @property
    def near_duplicates(self) -> NearDuplicates | None:
        """The rule about documents that resemble an earlier one, if it was chosen."""
        return next((rule for rule in self.rules.values() if isinstance(rule, NearDuplicates)), None)

    @property
    def needs(self) -> tuple[str, ...]:
        """Fields of records that the rules read, for Source."""
        return tuple(dict.fromkeys(name for rule in self.rules.values() for name in rule.needs))

    def begin_unit(self) -> "Cleaning":
        """The same rules for the documents of one unit, in order."""
        return replace(self, rules={n: rule.begin() if isinstance(rule, UnitRule) else rule for n, rule in self.rules.items()})

    @property
    def compares(self) -> bool:
        """Whether documents are compared with each other."""
        return self.drop_duplicates or self.near_duplicates is not None

    @property
    def comparisons(self) -> list[tuple[str, str]]:
        """Comparisons of all documents: array of FirstPass and name of the rule."""
        near = self.near_duplicates
        bands = [(f"band{number}", NEAR_DUPLICATES) for number in range(near.shape[0])] if near else []
        return bands + ([("hashes", DUPLICATES)] if self.drop_duplicates else [])

    @property
    def comparing_rules(self) -> list[str]:
        """Names of the rules that compare documents. A document dropped by two of them counts for the last one."""
        return list(dict.fromkeys(rule for _, rule in self.comparisons))

    def decide(self, document: Document) -> Decision:
        """The decision of the rules that look at each document on its own."""
        edits = tuple[tuple[str, str], ...]()
        scores = dict(document.scores)
        for name, rule in self.rules.items():
            if not isinstance(rule, DocumentRule | ScoreRule):
                continue
            try:
                with watched(name, document):
                    if isinstance(rule, ScoreRule):
                        scores[name] = rule.score(document.text)
                        if scores[name] < rule.minimum:
                            raise DocumentDropped(f"below {rule.minimum}")
                    left = rule.clean(document) if isinstance(rule, DocumentRule) else document.text
            except DocumentDropped as reason:
                return Decision(None, name, str(reason), edits, scores)
            if not left or left.isspace():
                return Decision(None, name, "nothing left", edits, scores)
            if left != document.text:
                edits += ((name, left),)
                document = document._replace(text=left)
        content = document.text.encode()
        return Decision(document.text, "", "", edits, scores, content, document_hash(content))

    def describe(self) -> list[dict[str, Any]]:
        """Everything that decides the rules' results, as JSON. Raises ModuleNotFoundError if a package is missing."""
        return [{"rule": name, **rule.describe()} for name, rule in self.rules.items()]


class OnePass:
    """Decides about the documents of the only unit, in order."""

    def __init__(self, cleaning: Cleaning) -> None:
        self._cleaning = cleaning.begin_unit()
        self._near = cleaning.near_duplicates
        self._hashes: set[bytes] = set()
        num_bands = self._near.shape[0] if self._near else 0
        self._bands = [defaultdict[int, Bucket](list) for _ in range(num_bands)]  # buckets of each band by key
        self._is_kept = bytearray()  # Whether each document compared with others so far is kept.

    def decide(self, document: Document) -> Decision:
        """The decision about the next document."""
        decision = self._cleaning.decide(document)
        if decision.text is None:
            return decision
        if self._cleaning.drop_duplicates:
            if decision.digest in self._hashes:
                return decision._replace(text=None, rule=DUPLICATES)
            self._hashes.add(decision.digest)
        if self._near:
            with watched(NEAR_DUPLICATES, document):
                keys, runs = self._near.signature(decision.text)
            number = len(self._is_kept)
            resembled = set[int]()
            for band, key in zip(self._bands, keys.tolist(), strict=True):
                resembled.update(self._near.find(number, runs, band[key]))
            is_kept = not any(self._is_kept[earlier] for earlier in resembled)
            self._is_kept.append(is_kept)
            if not is_kept:
                return decision._replace(text=None, rule=NEAR_DUPLICATES)
        return decision


class FirstPass:
    """Decides about the documents of a unit, and keeps the hashes and keys that decide about those that the rules keep.

    A document that equals an earlier one of the unit is dropped at once.
    """

    def __init__(self, cleaning: Cleaning) -> None:
        self._cleaning = cleaning.begin_unit()
        self._near = cleaning.near_duplicates
        self._known: set[bytes] = set()
        self._codes = array("B")  # of each document that the rules keep
        self._hashes = bytearray()
        self._keys: list[np.ndarray] = []
        self._run_ends = array("Q", [0])
        self._runs = list[np.ndarray]()

    def decide(self, document: Document) -> Decision:
        """The decision about the next document, unless another unit has it, too."""
        decision = self._cleaning.decide(document)
        if decision.text is None:
            return decision
        code = KEEP
        if self._cleaning.drop_duplicates:
            code = REPEATED if decision.digest in self._known else KEEP
            self._known.add(decision.digest)
            self._hashes += decision.digest
        self._codes.append(code)
        if self._near is not None:
            with watched(NEAR_DUPLICATES, document):
                keys, runs = self._near.signature(decision.text)
            self._keys.append(keys)
            self._runs.append(runs)
            self._run_ends.append(self._run_ends[-1] + runs.size)
        return decision._replace(text=None, rule=DUPLICATES) if code == REPEATED else decision

    def save_runs(self, append: Append) -> None:
        """Append the runs of the latest documents to RUNS, which frees their memory."""
        runs = np.concatenate([np.empty(0, np.uint32), *self._runs])
        append(RUNS, runs.data)
        self._runs.clear()

    def save(self, append: Append) -> None:
        """Write the input of `compare`: in KEYS codes, hashes and keys of the documents that the rules keep."""
        self.save_runs(append)
        run_ends = BytesIO()
        np.save(run_ends, np.array(self._run_ends))
        append(RUN_ENDS, run_ends.getvalue())
        arrays: dict[str, Any] = {"codes": np.array(self._codes, np.uint8)}
        if self._cleaning.drop_duplicates:
            arrays["hashes"] = np.frombuffer(self._hashes, "<u8").reshape(-1, 2)
        if self._near is not None:
            keys = np.array(self._keys, np.uint64).reshape(-1, self._near.shape[0])
            arrays |= {f"band{number}": keys[:, number : number + 1] for number in range(self._near.shape[0])}
        append(KEYS, packed(arrays))


@contextmanager
def watched(rule: str, document: Document) -> Iterator[None]:
    """Name the document for which a rule takes long or fails. It stays in both cases: no decision depends on time."""
    began = time.thread_time()
    try:
        yield
    except DocumentDropped:
        raise
    except Exception as error:
        error.add_note(f"rule {rule} was applied to {printable(document.place)}")
        raise
    finally:
        seconds = time.thread_time() - began
        if seconds > SLOW:
            place = printable(document.place)
            length = len(document.text)
            LOG.warning(f"rule {rule} took {seconds:.0f} s for {place}, a document of {length:,} characters")


def packed(arrays: Mapping[str, Any]) -> bytes:
    """Arrays as .npz."""
    file = BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def compare(drafts: Sequence[Path], name: str, near: NearDuplicates | None, beat: Callable[[], None]) -> bytes:
    """Compare all documents by one array of FirstPass.

    Memory: about 50 bytes for each of at most AT_ONCE hashes, 2 bytes for each document, and 16 bytes for each pair of similar
    documents.

    Args:
        drafts: Folders with the files of FirstPass for each unit, in order.
        name: The array, one of `Cleaning.comparisons`.
        near: The rule that decides whether documents with equal keys resemble each other; None: documents with equal hashes are
            equal.
        beat: Called again and again.

    Returns:
        Flags of exact duplicates, as .npz for `Draft`. With `near`: pairs of similar documents, as .npz for `near_drops`.
    """
    ends = np.cumsum([_load(draft, "codes").size for draft in drafts])
    groups = equal_groups([partial(_load, draft, name) for draft in drafts], beat=beat)
    if near is None:
        flags = np.zeros(ends[-1], bool)
        for group in groups:
            flags[group[1:]] = True
        return _flags_by_unit(flags, ends)
    runs = _Runs(drafts, ends)
    pairs = array("Q")
    for group in groups:
        bucket: Bucket = []
        for number in group.tolist():
            beat()
            for earlier in near.find(number, runs.of(number), bucket):
                pairs.extend((number, earlier))
    return packed({PAIRS: np.array(pairs, np.uint64).reshape(-1, 2)})


def read_comparison(file: Path, name: str) -> np.ndarray:
    """Read an array from the result of `compare` or `near_drops`.

    Args:
        file: File with the result.
        name: Name of the array in it.

    Raises:
        UserError: The file is corrupted.
    """
    try:
        with np.load(file, allow_pickle=False) as content:
            found: np.ndarray = content[name]
    except CORRUPTED_ARRAYS as error:
        raise UserError(
            f"{file}: corrupted ({error!r}): remove it, and the same command compares the documents again"
        ) from error
    return found


def near_drops(drafts: Sequence[Path], compared: Sequence[Path], beat: Callable[[], None]) -> bytes:
    """Decide which documents are near duplicates of kept documents.

    Memory: about 100 bytes for each pair of similar documents, and 2 bytes for each document.

    Args:
        drafts: Folders with the files of FirstPass for each unit, in order.
        compared: Files with the pairs that `compare` found in each band.
        beat: Called repeatedly, to renew the lease.

    Returns:
        Flags of the near duplicates, as .npz for `Draft`.
    """
    ends = np.cumsum([_load(draft, "codes").size for draft in drafts])
    pairs = [np.empty((0, 2), np.uint64)]
    for file in compared:
        beat()
        pairs.append(read_comparison(file, PAIRS))
    in_order = np.unique(np.concatenate(pairs), axis=0).tolist()  # Sorted by the later document of each pair.
    is_dropped = np.zeros(ends[-1], bool)
    for number, earlier in in_order:
        beat()
        if not is_dropped[earlier]:
            is_dropped[number] = True
    return _flags_by_unit(is_dropped, ends)


def _flags_by_unit(flags: np.ndarray, ends: np.ndarray) -> bytes:
    """Return flags of documents as .npz, with an array of bits for each unit.

    Args:
        flags: Flag of each document, in the order of the units.
        ends: Number of documents up to the end of each unit.
    """
    return packed({str(number): np.packbits(part) for number, part in enumerate(np.split(flags, ends[:-1]))})


def equal_groups(
    units: Sequence[Callable[[], np.ndarray]], at_once: int = AT_ONCE, beat: Callable[[], None] = lambda: None
) -> Iterator[np.ndarray]:
    """Numbers of the documents that have one hash, in order, for each hash that several have.

    Args:
        units: Functions that load the hashes of the documents of each unit, uint64 [n, k], in order.
        at_once: Number of hashes that are compared at a time, which bounds the memory. They are divided by their remainder.
        beat: Called for every unit of every part.
    """
    firsts = np.cumsum([0, *(len(load()) for load in units)])
    num_parts = 1 << max(0, int(firsts[-1]) // at_once).bit_length()
    for part in range(num_parts):
        places = []
        hashes = []
        for load, first in zip(units, firsts, strict=False):
            beat()
            all_hashes = load()
            chosen = np.flatnonzero(all_hashes[:, 0] % np.uint64(num_parts) == np.uint64(part))
            places.append(chosen + first)
            hashes.append(all_hashes[chosen])
        place = np.concatenate(places)
        value = np.concatenate(hashes)
        order = np.lexsort(value.T)  # stable: equal ones stay in the order of the source
        place = place[order]
        value = value[order]
        same = np.concatenate([[False], (value[1:] == value[:-1]).all(axis=1), [False]])  # as the one before
        for begin, last in np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2):
            yield place[begin : last + 1]


class _Runs:
    """The runs of all documents, in mapped files: the kernel keeps in memory what there is room for.

    Args:
        drafts: Folders with the files of FirstPass for each unit, in order.
        unit_ends: Number of documents up to the end of each unit.
    """

    def __init__(self, drafts: Sequence[Path], unit_ends: np.ndarray) -> None:
        self._unit_starts = [0, *unit_ends.tolist()]
        self._ends = lru_cache(MAPPED)(lambda unit: np.load(drafts[unit] / RUN_ENDS, mmap_mode="r"))
        self._runs = lru_cache(MAPPED)(lambda unit: np.memmap(drafts[unit] / RUNS, np.uint32, "r"))

    def of(self, number: int) -> np.ndarray:
        """The runs of a document, uint32."""
        unit = bisect_right(self._unit_starts, number) - 1
        row = number - self._unit_starts[unit]
        begin, end = self._ends(unit)[row : row + 2].tolist()
        return self._runs(unit)[begin:end] if end > begin else np.empty(0, np.uint32)


def _load(draft: Path, name: str) -> np.ndarray:
    with np.load(draft / KEYS, allow_pickle=False) as content:
        return content[name]

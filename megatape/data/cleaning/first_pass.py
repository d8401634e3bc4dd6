"""First pass over the documents of a unit: decisions, and the hashes and keys by which they are compared with other units."""

from array import array
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np

from megatape.data.cleaning.arrays import pack_arrays
from megatape.data.cleaning.decisions import DUPLICATES, NEAR_DUPLICATES, Cleaning
from megatape.data.sources.document import Decision, Document

# Names of the files.
KEYS = "keys.npz"
SHINGLES = "runs.u4"
SHINGLE_ENDS = "run_ends.npy"
# Codes of documents that the rules keep. REPEATED: an earlier document of the unit is equal.
KEEP = 0
REPEATED = 1
# Appends content to the file of this name.
Append = Callable[[str, bytes | memoryview], None]


class FirstPass:
    """Decides about the documents of a unit, and keeps hashes and keys of those that the rules keep.

    Exact duplicates inside the unit are dropped at once.
    """

    def __init__(self, cleaning: Cleaning) -> None:
        self._cleaning = cleaning.begin_unit()
        self._near = cleaning.near_duplicates
        self._known: set[bytes] = set()
        # Code of each document that the rules keep.
        self._codes = array("B")
        self._hashes = bytearray()
        self._keys: list[np.ndarray] = []
        self._shingles: list[np.ndarray] = []
        self._shingle_ends = array("Q", [0])

    def decide(self, document: Document) -> Decision:
        """Decide about the next document, regardless of other units."""
        decision = self._cleaning.decide(document)
        if decision.text is None:
            return decision
        code = KEEP
        if self._cleaning.drop_duplicates:
            if decision.digest in self._known:
                code = REPEATED
            self._known.add(decision.digest)
            self._hashes += decision.digest
        self._codes.append(code)
        if self._near is not None:
            with self._cleaning.watch(NEAR_DUPLICATES, document):
                keys, shingles = self._near.signature(decision.text)
            self._keys.append(keys)
            self._shingles.append(shingles)
            self._shingle_ends.append(self._shingle_ends[-1] + shingles.size)
        if code == REPEATED:
            return decision._replace(text=None, rule=DUPLICATES)
        return decision

    def save_shingles(self, append: Append) -> None:
        """Append the shingles of the latest documents to SHINGLES, which frees their memory."""
        shingles = np.concatenate([np.empty(0, np.uint32), *self._shingles])
        append(SHINGLES, shingles.data)
        self._shingles.clear()

    def save(self, append: Append) -> None:
        """Write the input of `compare`: codes, hashes and keys of the documents that the rules keep."""
        self.save_shingles(append)
        ends_file = BytesIO()
        np.save(ends_file, np.array(self._shingle_ends))
        append(SHINGLE_ENDS, ends_file.getvalue())
        arrays: dict[str, Any] = {"codes": np.array(self._codes, np.uint8)}
        if self._cleaning.drop_duplicates:
            arrays["hashes"] = np.frombuffer(self._hashes, "<u8").reshape(-1, 2)
        if self._near is not None:
            num_bands, _ = self._near.shape
            keys = np.array(self._keys, np.uint64).reshape(-1, num_bands)
            for number in range(num_bands):
                arrays[f"band{number}"] = keys[:, number : number + 1]
        append(KEYS, pack_arrays(arrays))

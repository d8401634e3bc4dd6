"""First pass over a unit's documents: applies the rules, and collects hashes and keys for comparing them with other units."""

from array import array
from collections.abc import Callable

import numpy as np

from megatape.data.cleaning.decisions import DUPLICATES, NEAR_DUPLICATES, Cleaning
from megatape.data.cleaning.near_duplicates.stored_shingles import SHINGLE_ENDS, SHINGLES, shingle_checksum
from megatape.data.cleaning.stored.sorted_keys import pack_columns
from megatape.data.sources.document import Decision, Document

# File with the sorted keys and hashes.
KEYS = "keys.bin"
# File with a code for each document that the rules keep. REPEATED: an earlier document in the unit is equal.
CODES = "codes.u1"
KEEP = 0
REPEATED = 1
# Appends content to the file with this name.
Append = Callable[[str, bytes | memoryview], None]


class FirstPass:
    """Decides about a unit's documents, and collects hashes and keys of those that the rules keep.

    Exact duplicates within the unit are dropped at once.
    """

    def __init__(self, cleaning: Cleaning) -> None:
        self._cleaning = cleaning.start_unit()
        self._near = cleaning.near_duplicates
        self._digests: set[bytes] = set()
        # Code of each document that the rules keep.
        self._codes = array("B")
        self._hashes = bytearray()
        self._keys: list[np.ndarray] = []
        self._shingles: list[np.ndarray] = []
        # Entries of SHINGLE_ENTRY.
        self._shingle_ends = array("Q", [0, 0])

    def decide(self, document: Document) -> Decision:
        """Decide about the next document, regardless of other units."""
        decision = self._cleaning.decide(document)
        if decision.text is None:
            return decision
        code = KEEP
        if self._cleaning.drop_duplicates:
            if decision.digest in self._digests:
                code = REPEATED
            self._digests.add(decision.digest)
            self._hashes += decision.digest
        self._codes.append(code)
        if self._near is not None:
            with self._cleaning.watch(NEAR_DUPLICATES, document):
                signature = self._near.signature(decision.text)
            self._keys.append(signature.keys)
            self._shingles.append(signature.shingles)
            end = self._shingle_ends[-2] + signature.shingles.size
            row = len(self._codes) - 1
            self._shingle_ends.extend((end, shingle_checksum(signature.shingles, row)))
        if code == REPEATED:
            return decision._replace(text=None, rule=DUPLICATES)
        return decision

    def save_shingles(self, append: Append) -> None:
        """Append the shingles collected so far to SHINGLES, and free their memory."""
        shingles = np.concatenate([np.empty(0, np.uint32), *self._shingles])
        append(SHINGLES, shingles.data)
        self._shingles.clear()

    def save(self, append: Append) -> None:
        """Write codes, hashes and keys of the documents that the rules keep, duplicates within the unit included."""
        self.save_shingles(append)
        append(SHINGLE_ENDS, self._shingle_ends.tobytes())
        append(CODES, self._codes.tobytes())
        columns = []
        if self._near is not None:
            num_bands = self._near.banding.bands
            keys = np.array(self._keys, np.uint64).reshape(-1, num_bands)
            columns += np.split(keys, num_bands, axis=1)
        if self._cleaning.drop_duplicates:
            columns.append(np.frombuffer(self._hashes, "<u8").reshape(-1, 2))
        append(KEYS, pack_columns(columns))

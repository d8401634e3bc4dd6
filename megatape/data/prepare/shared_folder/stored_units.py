"""Units of a plan, one line each, so that a process reads those that it works on instead of parsing all of them."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import xxhash

from megatape.data.sources.units import Unit
from megatape.errors import UserError
from megatape.utils.files.files import open_regular
from megatape.utils.values.lazy_sequence import LazySequence
from megatape.utils.values.validation import as_type

CHUNK_BYTES = 2**22
NEWLINE = ord("\n")


def pack_units(units: Sequence[Unit]) -> bytes:
    """Return the content of a file of units."""
    # Python's encoder also takes names that are not UTF-8.
    lines = [json.dumps(vars(unit)) for unit in units]
    return "".join(f"{line}\n" for line in lines).encode()


def units_checksum(content: bytes) -> str:
    """Return the checksum of a file of units."""
    return xxhash.xxh3_128_hexdigest(content)


class StoredUnits(LazySequence[Unit]):
    """Units in a file.

    Args:
        path: The file.
        checksum: Its checksum.

    Raises:
        FileNotFoundError: The file is missing.
        UserError: It has another checksum.
    """

    def __init__(self, path: Path, checksum: str) -> None:
        self._path = path
        hasher = xxhash.xxh3_128()
        # Offset of the end of each line, preceded by 0.
        ends = [np.zeros(1, np.int64)]
        offset = 0
        with open_regular(path) as file:
            while True:
                chunk = file.read(CHUNK_BYTES)
                if not chunk:
                    break
                hasher.update(chunk)
                ends.append(np.flatnonzero(np.frombuffer(chunk, np.uint8) == NEWLINE) + offset + 1)
                offset += len(chunk)
        if hasher.hexdigest() != checksum:
            raise UserError("its content is not what was written")
        self._ends = np.concatenate(ends)

    def __len__(self) -> int:
        return self._ends.size - 1

    def read_item(self, number: int) -> Unit:
        """Return a unit."""
        begin = self._ends.item(number)
        with open_regular(self._path) as file:
            file.seek(begin)
            line = file.read(self._ends.item(number + 1) - begin)
        return as_type(json.loads(line), Unit)

    def __iter__(self) -> Iterator[Unit]:
        with open_regular(self._path) as file:
            for line in file:
                yield as_type(json.loads(line), Unit)

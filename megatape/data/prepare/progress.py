"""Progress of a preparation."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class UnitPass(Enum):
    """Passes over a unit."""

    FIRST = "first pass"
    WRITE = "write pass"


class Progress(NamedTuple):
    """Work done so far, in a pass over a unit or in a whole preparation.

    Attributes:
        read_bytes: Bytes read from the stored files.
        written: Documents written.
        text_bytes: Size of their texts in UTF-8.
        tokens: Tokens written.
        total_bytes: Bytes to read in all; 0 if unknown.
    """

    read_bytes: int
    written: int = 0
    text_bytes: int = 0
    tokens: int = 0
    total_bytes: int = 0


@dataclass(frozen=True)
class UnitProgress:
    """Work done so far in a pass over unit `number`."""

    number: int
    unit_pass: UnitPass
    progress: Progress


# Called repeatedly with the progress of a pass, or of a preparation.
OnProgress = Callable[[Progress], None]
# Called repeatedly with the progress of a pass over a unit.
OnUnitProgress = Callable[[UnitProgress], None]

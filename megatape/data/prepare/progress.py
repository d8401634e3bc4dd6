"""Progress of a preparation."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class UnitPass(Enum):
    """Passes over a unit. The first one reads the source and decides about documents."""

    DECIDE = "decisions"
    WRITE = "tokens"


class Progress(NamedTuple):
    """Work done so far, in a pass over a unit or in a whole preparation.

    Attributes:
        read_bytes: Number of bytes read of the stored files.
        written: Number of documents written.
        text_bytes: Size of their texts in UTF-8.
        tokens: Number of tokens written.
        total_bytes: Number of bytes to read in all; 0 if unknown.
    """

    read_bytes: int
    written: int = 0
    text_bytes: int = 0
    tokens: int = 0
    total_bytes: int = 0


@dataclass(frozen=True)
class UnitProgress:
    """Progress of a pass over a unit.

    Attributes:
        number: Number of the unit.
        unit_pass: The pass.
        progress: Work done so far in this pass.
    """

    number: int
    unit_pass: UnitPass
    progress: Progress


# Called repeatedly with the progress of a pass, or of a preparation.
OnProgress = Callable[[Progress], None]
# Called repeatedly with the progress of a pass over a unit.
OnUnitProgress = Callable[[UnitProgress], None]

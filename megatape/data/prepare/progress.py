"""Progress of a preparation."""

from collections.abc import Callable
from typing import NamedTuple

# Names of the passes over a unit. The first one reads the source and decides about documents.
DECIDE_PASS = "decisions"
WRITE_PASS = "tokens"


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


# Called repeatedly with the progress of a pass, or of a preparation.
OnProgress = Callable[[Progress], None]
# Called repeatedly with the number of a unit, the name of a pass, and the progress of this pass over the unit.
OnUnitProgress = Callable[[int, str, Progress], None]

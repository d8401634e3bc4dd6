"""The position encodings that there is code for, by the name that config.json has under "encoding"."""

from .encoding import Encoding
from .encoding_tape import Tape

ENCODINGS: dict[str, type[Encoding]] = {
    "tape": Tape,
}

"""The position encoding of this model."""

from .encoding_tape import Tape

ENCODING = Tape

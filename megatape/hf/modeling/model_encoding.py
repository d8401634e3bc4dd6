"""The position encoding of this model."""

from .encoding_tape import Tape

ENCODING = Tape
NAME = "tape"
SCALABLE = True  # whether rope_parameters may change its frequencies

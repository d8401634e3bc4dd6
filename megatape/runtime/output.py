"""Lines for whoever reads the output, who may be gone."""

from contextlib import suppress
from typing import TextIO


def say(text: str, stream: TextIO) -> None:
    """Print a line at once. One that cannot be written, because the terminal or the reader of a pipe has gone or a disk is
    full, is lost, and nothing else happens."""
    with suppress(OSError):
        print(text, file=stream, flush=True)

"""Lines for whoever reads the output, who may be gone: the one handler of the logger `megatape` and those below it."""

import logging
import os
import re
import sys
from contextlib import suppress
from typing import TextIO

# Of ANSI terminals.
BOLD, RED, YELLOW, RESET = "\x1b[1m", "\x1b[31m", "\x1b[33m", "\x1b[0m"
COLOURS = {logging.WARNING: YELLOW, logging.ERROR: RED}
LOSS = re.compile(r"\b(?:validation )?loss [\d.]+")  # in a line of a step


class LineHandler(logging.Handler):
    """Prints each line at once: information on the main rank to the output, the rest of every rank to the errors.

    A line that cannot be written, because the terminal or the reader of a pipe has gone or a disk is full, is lost, and nothing
    else happens. A warning of another rank begins with its number; an error says itself whose it is.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        rank, is_information = os.environ.get("RANK", "0"), record.levelno == logging.INFO
        if is_information and rank != "0":
            return
        stream = sys.stdout if is_information else sys.stderr
        of = f"rank {rank}: " if record.levelno == logging.WARNING and rank != "0" else ""
        with suppress(OSError):
            text = f"{of}{self.format(record)}"
            if has_colour(stream):
                colour = COLOURS.get(record.levelno)
                text = f"{colour}{text}{RESET}" if colour else LOSS.sub(rf"{BOLD}\g<0>{RESET}", text)
            stream.write(f"{text}\n")
            stream.flush()


def has_colour(stream: TextIO) -> bool:
    """Whether a stream is a terminal on which colours are wanted (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def show_lines(verbose: bool = False) -> None:
    """Print what the library logs. Commands call this; in other programs `logging` is theirs to set up.

    Args:
        verbose: whether where errors of the user's were raised is shown, too.
    """
    logger = logging.getLogger("megatape")
    logger.handlers, logger.propagate = [LineHandler()], False
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)

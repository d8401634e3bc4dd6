"""Lines of this package's loggers on the terminal: stream, color, and the rank that prints them."""

import logging
import os
import re
import select
import sys
from contextlib import suppress
from typing import TextIO

from megatape.utils.url_secrets import mask_secrets

# Escape sequences of ANSI terminals.
BOLD = "\x1b[1m"
RED = "\x1b[31m"
YELLOW = "\x1b[33m"
RESET = "\x1b[0m"
COLORS = {logging.WARNING: YELLOW, logging.ERROR: RED}
# Loss in the line of a step.
LOSS = re.compile(r"\b(?:validation )?loss [\d.]+")


class LineHandler(logging.Handler):
    """Prints each line at once: information on the main rank to the standard output, all else to the standard error.

    A line that cannot be written is lost without an error: the terminal or the reader of a pipe may have gone, or the disk may
    be full. A warning of another rank begins with its number. Errors name their rank themselves.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        rank = os.environ.get("RANK", "0")
        stream = sys.stderr
        if record.levelno == logging.INFO:
            if rank != "0":
                return
            stream = sys.stdout
        origin = ""
        if record.levelno == logging.WARNING and rank != "0":
            origin = f"rank {rank}: "
        with suppress(OSError):
            text = f"{origin}{mask_secrets(self.format(record))}"
            if has_color(stream):
                text = _colored(text, record.levelno)
            stream.write(f"{text}\n")
            stream.flush()


def _colored(text: str, level: int) -> str:
    """Return a line with the color of its level. If it has none, the loss is bold."""
    color = COLORS.get(level)
    if color is None:
        return LOSS.sub(rf"{BOLD}\g<0>{RESET}", text)
    return f"{color}{text}{RESET}"


def has_color(stream: TextIO) -> bool:
    """Whether a stream is a terminal whose user wants colors (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def show_lines(verbose: bool = False) -> None:
    """Print the log of this package. Commands call this; other programs configure `logging` themselves.

    Args:
        verbose: Whether to show where user errors were raised.
    """
    level = logging.INFO
    if verbose:
        level = logging.DEBUG
    logger = logging.getLogger("megatape")
    logger.handlers = [LineHandler()]
    logger.propagate = False
    logger.setLevel(level)


def print_at_once(text: str) -> None:
    """Write to the standard error without buffers or locks. The text is lost if that is stuck for a second."""
    stderr = 2
    _, writable, _ = select.select([], [stderr], [], 1.0)
    with suppress(OSError):
        if writable:
            os.write(stderr, text.encode())

"""Prints this package's log on the terminal: which stream, color and rank."""

import logging
import os
import re
import select
import sys
from contextlib import suppress
from typing import TextIO

from megatape.utils.text.url_secrets import mask_secrets

# ANSI escape sequences.
BOLD = "\x1b[1m"
RED = "\x1b[31m"
YELLOW = "\x1b[33m"
RESET = "\x1b[0m"
COLORS = {logging.WARNING: YELLOW, logging.ERROR: RED}
# Loss in a step's line.
LOSS = re.compile(r"\b(?:validation )?loss [\d.]+")


class LineHandler(logging.Handler):
    """Prints each line at once: the main rank's information to standard output, all else to standard error.

    A line that cannot be written is lost without an error: the terminal or a pipe's reader may have gone, or the disk may be
    full. A warning from another rank begins with its number. Errors name their rank themselves.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        rank = os.environ.get("RANK", "0")
        stream: TextIO | None = sys.stderr
        if record.levelno == logging.INFO:
            if rank != "0":
                return
            stream = sys.stdout
        if stream is None:
            # Python's value for a stream that was closed when the process started.
            return
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
    """Color a line by its level. If the level has no color, make the loss bold."""
    color = COLORS.get(level)
    if color is None:
        return LOSS.sub(rf"{BOLD}\g<0>{RESET}", text)
    return f"{color}{text}{RESET}"


def has_color(stream: TextIO) -> bool:
    """Whether a stream is a terminal whose user wants colors (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def show_log(verbose: bool = False) -> None:
    """Print this package's log. Commands call this; other programs configure `logging` themselves.

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
    """Write to standard error without buffers or locks. The rest of a text is lost if standard error is stuck for a second.

    Nothing is raised, even if standard error is closed.
    """
    stderr = 2
    rest = text.encode(errors="backslashreplace")
    with suppress(OSError):
        while rest:
            _, writable, _ = select.select([], [stderr], [], 1.0)
            if not writable:
                return
            # A longer piece could block, even if the pipe is writable.
            num_written = os.write(stderr, rest[: select.PIPE_BUF])
            rest = rest[num_written:]

"""Lines for whoever reads the output, who may be gone: the one handler of the logger `megatape` and those below it."""

import logging
import os
import sys
from contextlib import suppress


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
            stream.write(f"{of}{self.format(record)}\n")
            stream.flush()


def show_lines(verbose: bool = False) -> None:
    """Print what the library logs. Commands call this; in other programs `logging` is theirs to set up.

    Args:
        verbose: whether where errors of the user's were raised is shown, too.
    """
    logger = logging.getLogger("megatape")
    logger.handlers, logger.propagate = [LineHandler()], False
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)

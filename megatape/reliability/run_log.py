"""What a run tells: lines on the main rank's terminal, and events.jsonl."""

import logging
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, TextIO

from megatape.distributed.topology import Topology
from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder
from megatape.utils.files import append_lines, sync
from megatape.utils.masking import mask, mask_values

LOG = logging.getLogger(__name__)

MAX_TEXT = 20_000  # maximum characters of a text in an event; each one takes up to 12 bytes in JSON

Event = Literal[
    "started",
    "resumed",
    "checkpoint",
    "spike",
    "skipped",
    "rollback",
    "slow rank",
    "save failed",
    "stopped",
    "failed",
    "finished",
]
# Escape sequences of ANSI terminals.
BOLD = "\x1b[1m"
RED = "\x1b[31m"
YELLOW = "\x1b[33m"
RESET = "\x1b[0m"
COLOURS = {logging.WARNING: YELLOW, logging.ERROR: RED}
LOSS = re.compile(r"\b(?:validation )?loss [\d.]+")  # in a line of a step


class RunLog:
    """Lines for people, and the events of a run. Other ranks than the main one are silent.

    Nothing is written into the run's folder while another run may have it. What cannot be written, because a disk is full or
    a file server is away, costs one warning and never the run; events wait in memory.

    Attributes:
        step: the last step that was made.
    """

    def __init__(self, folder: RunFolder, lease: Lease, topology: Topology) -> None:
        self._folder = folder
        self._lease = lease
        self.is_main = topology.is_main
        self.step = 0
        self._events: deque[dict[str, Any]] = deque()  # those that are not written yet
        self._warned: set[str] = set()

    def info(self, text: str) -> None:
        """Print a line."""
        if self.is_main:
            LOG.info(text)

    def warning(self, text: str) -> None:
        """Print a line to the errors."""
        if self.is_main:
            LOG.warning("warning: %s", text)

    def record(self, event: Event, detail: str = "", **facts: Any) -> None:
        """Keep an event of the last step. facts: further JSON values of its line, by name."""
        if self.is_main:
            self._events.append(_shortened(mask_values(event_entry(event, self.step, detail) | facts)))
            self.flush()

    def flush(self) -> None:
        """Write events that could not be written before."""
        self.attempt(self._write_events)

    def attempt(self, write: Callable[[], object]) -> bool:
        """Write into the run's folder; an OSError costs a warning, the first time that it is met.

        Returns:
            Whether it was written.

        Raises:
            LeaseLost: another run has taken the folder.
        """
        try:
            self._lease.check()
            write()
            return True
        except OSError as error:
            if str(error) not in self._warned:
                self._warned.add(str(error))
                self.warning(f"metrics could not be written: {error}; training continues")
            return False

    def sync_metrics(self) -> None:
        """Wait until metrics.jsonl is on disk: after a power failure no checkpoint may lack the metrics of its steps.

        Before the first step there is no file, and a disk that refuses it has caused a warning.
        """
        if self.is_main and self._folder.metrics.exists():
            self.attempt(lambda: sync(self._folder.metrics))

    def _write_events(self) -> None:
        while self._events:
            append_lines(self._folder.events, [self._events[0]], durable=False)
            self._events.popleft()


def event_entry(event: Event, step: int, detail: str) -> dict[str, Any]:
    """The object of a line of events.jsonl: `time` in seconds since 1970, `event`, `step` (the last one made) and `detail`."""
    return {"time": round(time.time(), 3), "event": event, "step": step, "detail": detail}


def _shortened(value: Any) -> Any:
    """Shorten the texts in a JSON value, so that its line is short enough for `read_lines`."""
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return f"{value[:MAX_TEXT]}... ({len(value):,} characters)"
    if isinstance(value, dict):
        return {key: _shortened(part) for key, part in value.items()}
    return value


class LineHandler(logging.Handler):
    """Prints each line at once: information on the main rank to the output, the rest of every rank to the errors.

    A line that cannot be written, because the terminal or the reader of a pipe has gone or a disk is full, is lost, and nothing
    else happens. A warning of another rank begins with its number; an error says itself whose it is.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        rank = os.environ.get("RANK", "0")
        is_information = record.levelno == logging.INFO
        if is_information and rank != "0":
            return
        stream = sys.stdout if is_information else sys.stderr
        of = f"rank {rank}: " if record.levelno == logging.WARNING and rank != "0" else ""
        with suppress(OSError):
            text = f"{of}{mask(self.format(record))}"
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
    logger.handlers = [LineHandler()]
    logger.propagate = False
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)

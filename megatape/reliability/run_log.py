"""Run log: lines printed by the main rank, and events.jsonl."""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from megatape.distributed.topology import Topology
from megatape.reliability.goodput.process_clock import ProcessClock
from megatape.reliability.goodput.read import earlier_run_time
from megatape.reliability.goodput.run_time import RunTime
from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder
from megatape.utils.files.files import sync
from megatape.utils.files.json_lines import append_lines
from megatape.utils.text.url_secrets import mask_secrets_in_json

LOG = logging.getLogger(__name__)

# Maximum characters of an event's text. Each takes up to 12 bytes in JSON.
MAX_TEXT = 20_000

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


class RunLog:
    """Prints lines, and writes events. Only the main rank does.

    Nothing is written while another run may hold the lease. If writing fails, because the disk is full or the file server is
    away, the run continues after one warning, and events wait in memory.

    Args:
        folder: Run directory.
        lease: Lease on it.
        topology: All ranks.
        clock: Clock of this process, by default a new one. Events contain its reading.

    Attributes:
        is_main: Whether this rank prints and writes.
        step: Last completed step.
        run_time: Time of the run until the last event, on the main rank.
    """

    def __init__(self, folder: RunFolder, lease: Lease, topology: Topology, clock: ProcessClock | None = None) -> None:
        self._folder = folder
        self._lease = lease
        self.is_main = topology.is_main
        self.step = 0
        self.run_time = RunTime()
        self._clock = clock or ProcessClock()
        # Events that are not written yet.
        self._events: deque[dict[str, Any]] = deque()
        self._warned: set[str] = set()

    def info(self, text: str) -> None:
        """Print to standard output."""
        if self.is_main:
            LOG.info(text)

    def warning(self, text: str) -> None:
        """Print a warning to standard error."""
        if self.is_main:
            LOG.warning("warning: %s", text)

    def record(self, event: Event, detail: str = "", **facts: Any) -> None:
        """Record an event after the last completed step.

        Args:
            event: Kind of event.
            detail: Description for people.
            facts: Further JSON values by name.
        """
        if self.is_main:
            entry = event_entry(event, self.step, detail) | facts | {"clock": self._clock.read().to_json()}
            self.run_time.add(entry)
            self._events.append(_shortened(mask_secrets_in_json(entry)))
            self.flush()

    def read_earlier_events(self) -> None:
        """Read the time of the run's earlier processes. Errors cause a warning, and their time is not counted."""

        def read() -> None:
            self.run_time = earlier_run_time(self._folder)

        if self.is_main:
            self.attempt(read, "earlier events could not be read")

    def goodput(self) -> float | None:
        """Return the share of time since the run's first start that new steps took, None if unknown or not on the main rank."""
        return self.run_time.goodput_at(self._clock.read())

    def flush(self) -> None:
        """Write events that could not be written before."""
        self.attempt(self._write_events, "events could not be written")

    def attempt(self, work: Callable[[], object], failure: str = "metrics could not be written") -> bool:
        """Read or write files of the run directory, turning an OSError into a warning. Repeated errors warn once.

        Args:
            work: Reads or writes files.
            failure: Beginning of the warning: what failed.

        Returns:
            Whether `work` succeeded.

        Raises:
            LeaseLost: Another run has taken over the run directory.
        """
        try:
            self._lease.check()
            work()
            return True
        except OSError as error:
            if str(error) not in self._warned:
                self._warned.add(str(error))
                self.warning(f"{failure}: {error}; training continues")
            return False

    def sync_metrics(self) -> None:
        """Wait until metrics.jsonl is on disk, so that no checkpoint lacks its steps' metrics after a power failure."""
        # The file is missing before the first step, and if it could not be written, which caused a warning.
        if self.is_main and self._folder.metrics.exists():
            self.attempt(lambda: sync(self._folder.metrics))

    def _write_events(self) -> None:
        while self._events:
            append_lines(self._folder.events, [self._events[0]], durable=False)
            self._events.popleft()


def event_entry(event: Event, step: int, detail: str) -> dict[str, Any]:
    """Return a line of events.jsonl as a JSON object. Its `time` is in seconds since 1970.

    Args:
        event: Kind of event.
        step: Last completed step.
        detail: Description for people.
    """
    return {
        "time": round(time.time(), 3),
        "event": event,
        "step": step,
        "detail": detail,
    }


def _shortened(value: Any) -> Any:
    """Shorten texts in a JSON value, so that `read_lines` accepts its line."""
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return f"{value[:MAX_TEXT]}... ({len(value):,} characters)"
    if isinstance(value, dict):
        return {key: _shortened(part) for key, part in value.items()}
    return value

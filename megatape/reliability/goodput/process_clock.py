"""Stopwatch of a process: where its seconds went, measured on its main thread."""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from megatape.reliability.goodput.parts import TimePart, TimeParts, as_seconds
from megatape.utils.processes.process_table import boot_id, read_process, seconds_since_boot

# Steps after the newest checkpoint whose seconds are remembered, more than any interval between saves.
MAX_REMEMBERED_STEPS = 100_000


@dataclass(frozen=True)
class ClockReading:
    """Reading of a process's clock, as events.jsonl stores it.

    Attributes:
        process: Random name of the process's clock.
        boot: Boot of the machine, empty if unknown. Only readings of the same boot have comparable times.
        began: Start of the process, or of its launcher, in seconds since boot.
        now: Time of the reading in seconds since boot.
        parts: Seconds from `began` to `now`.
    """

    process: str
    boot: str
    began: float
    now: float
    parts: TimeParts

    def to_json(self) -> dict[str, Any]:
        """Return the reading for events.jsonl."""
        return {
            "process": self.process,
            "boot": self.boot,
            "began": round(self.began, 3),
            "now": round(self.now, 3),
            "seconds": self.parts.to_json(),
        }

    @classmethod
    def from_json(cls, value: Any) -> Self | None:
        """Parse `to_json`, or return None: an earlier version wrote no reading, or the line was changed."""
        try:
            return cls(
                str(value["process"]),
                str(value["boot"]),
                as_seconds(value["began"]),
                as_seconds(value["now"]),
                TimeParts.from_json(value["seconds"]),
            )
        except (ValueError, KeyError, TypeError):
            return None


@dataclass
class Measured:
    """Time of a measured block, excluding measured blocks inside it.

    Attributes:
        seconds: Seconds, complete at the end of the block.
    """

    seconds: float = 0.0


class ProcessClock:
    """Attributes each second of a process to one part.

    The part of the innermost `measure` block gets the time. Outside of all blocks, the part passed to `begin` does. Only the
    main thread uses the clock.

    Args:
        now: Returns seconds since boot.
        began: Seconds since boot at which the time begins, by default now.
    """

    def __init__(self, now: Callable[[], float] = seconds_since_boot, began: float | None = None) -> None:
        self._now = now
        self._process = secrets.token_hex(4)
        self._boot = boot_id()
        self._since = now()
        if began is not None:
            self._since = min(began, self._since)
        self._began = self._since
        self._parts = TimeParts()
        self._part = TimePart.OTHER
        # The first computed step's seconds, until the second one shows how many of them were warm-up.
        self._first_step: float | None = None
        self._has_warmed_up = False
        # New seconds of the steps since the newest checkpoint.
        self._new_seconds: dict[int, float] = {}

    @classmethod
    def of_command(cls, launcher: int | None = None) -> Self:
        """Return the clock of this process, counting from the start of its launcher. Later time counts as imports.

        Args:
            launcher: Process id of DeepSpeed's launcher, None if another one, or none, has started this process.
        """
        now = seconds_since_boot()
        started = _start_of(os.getpid(), now)
        began = started
        if launcher is not None:
            began = min(_start_of(launcher, now), started)
        clock = cls(began=began)
        clock._parts[TimePart.LAUNCH] = started - began
        clock._parts[TimePart.PROCESS_START] = max(0.0, now - started)
        clock._since = now
        clock._part = TimePart.IMPORTS
        return clock

    @classmethod
    def of_rank(cls, assigned_at: float) -> Self:
        """Return the clock of a process that has waited for its rank. Time since then counts as imports, until `begin`.

        Args:
            assigned_at: Time at which the process got its rank, in seconds since boot.
        """
        clock = cls(began=assigned_at)
        clock._part = TimePart.IMPORTS
        return clock

    def begin(self, part: TimePart) -> None:
        """Attribute the time outside of `measure` blocks to a part from now on."""
        self._charge()
        self._part = part

    @contextmanager
    def measure(self, part: TimePart) -> Iterator[Measured]:
        """Attribute the time of a block to a part, except for `measure` blocks inside it."""
        measured = Measured()
        outer = self._part
        self.begin(part)
        before = self._parts[part]
        try:
            yield measured
        finally:
            self.begin(outer)
            measured.seconds = max(0.0, self._parts[part] - before)

    def finish_step(self, step: int, seconds: float, waited: float, is_applied: bool) -> None:
        """Count a completed step, whose time was measured as `repeated_steps` because an unfinished step is made again.

        Args:
            step: Step number.
            seconds: Measured seconds.
            waited: Seconds of these in which it waited for data.
            is_applied: Whether the weights were updated.
        """
        waited = min(waited, seconds)
        self._parts.move(TimePart.REPEATED_STEPS, TimePart.DATA_WAITS, waited)
        seconds -= waited
        if not is_applied:
            self._parts.move(TimePart.REPEATED_STEPS, TimePart.SKIPPED_STEPS, seconds)
            return
        if self._has_warmed_up:
            self._count_new(step, TimePart.REPEATED_STEPS, seconds)
            return
        if self._first_step is None:
            self._first_step = seconds
            self._parts.move(TimePart.REPEATED_STEPS, TimePart.COMPILATION, seconds)
            return
        self._has_warmed_up = True
        self._count_new(step - 1, TimePart.COMPILATION, min(self._first_step, seconds))
        self._count_new(step, TimePart.REPEATED_STEPS, seconds)

    def forget_steps(self) -> None:
        """Forget the steps since the newest checkpoint, because a rollback has undone them. `RunTime` counts them as undone."""
        self._new_seconds.clear()

    def new_seconds_after(self, step: int) -> float:
        """Return the seconds of new steps after a saved step, and forget those of earlier steps."""
        for saved in [number for number in self._new_seconds if number <= step]:
            del self._new_seconds[saved]
        return sum(self._new_seconds.values())

    def read(self) -> ClockReading:
        """Return the seconds until now."""
        self._charge()
        return ClockReading(self._process, self._boot, self._began, self._since, self._parts.copy())

    def _charge(self) -> None:
        """Add the time since the last call to the present part."""
        now = self._now()
        self._parts[self._part] += max(0.0, now - self._since)
        self._since = max(now, self._since)

    def _count_new(self, step: int, source: TimePart, seconds: float) -> None:
        self._parts.move(source, TimePart.NEW_STEPS, seconds)
        if len(self._new_seconds) < MAX_REMEMBERED_STEPS:
            self._new_seconds[step] = seconds


def _start_of(pid: int, default: float) -> float:
    """Return the start of a process in seconds since boot, or a default if it cannot be read."""
    try:
        ticks = read_process(pid).start_ticks
    except OSError:
        return default
    return min(ticks / os.sysconf("SC_CLK_TCK"), default)

"""Adds up the time of all processes of a run, from the readings of their clocks in events.jsonl."""

from collections.abc import Mapping
from typing import Any

from megatape.reliability.goodput.parts import RESTART_PARTS, TimePart, TimeParts, as_seconds, as_step
from megatape.reliability.goodput.process_clock import ClockReading
from megatape.reliability.goodput.process_time import ProcessTime
from megatape.reliability.goodput.saved_steps import SavedSteps, SavedTime

STARTS = ("started", "resumed")
ENDS = ("finished", "stopped", "failed")
# Earlier versions called a rollback rewound.
ROLLBACKS = ("rollback", "rewound")


class RunTime:
    """Time of a run, from its events.

    A run keeps the steps until the checkpoint that the next process resumes from, or that a rollback returns to. The others
    are undone. All durations come from clocks that nobody sets. Only the time between processes on different machines, or
    before and after a reboot, is a difference of wall-clock times, and counts as 0 if it is negative.

    Args:
        step_seconds: Step -> seconds in metrics.jsonl, for processes of versions that recorded no readings.

    Attributes:
        processes: Processes in order.
        num_rollbacks: Number of rollbacks.
        last_step: Last completed step at the last event.
        last_time: Time of the last event, in seconds since 1970.
        has_ended: Whether the last process recorded its end.
    """

    def __init__(self, step_seconds: Mapping[int, float] | None = None) -> None:
        self.processes: list[ProcessTime] = []
        self.num_rollbacks = 0
        self.last_step = 0
        self.has_ended = False
        self.last_time = 0.0
        self._step_seconds = step_seconds or {}
        # Sum over all processes but the last.
        self._ended = TimeParts()
        # Seconds of new steps that were undone, and seconds after the last event of a killed process.
        self._undone = 0.0
        self._lost = 0.0
        # Seconds in which the previous process was still running after the start of the present one.
        self._overlap = 0.0
        self._saved = SavedSteps(0)
        # Newest reading, None if the present process records none.
        self._reading: ClockReading | None = None

    @property
    def parts(self) -> TimeParts:
        """Seconds by part, from the first start to the last event."""
        summed = self._ended.copy()
        if self.processes:
            summed += self.processes[-1].parts
        summed.move(TimePart.NEW_STEPS, TimePart.REPEATED_STEPS, min(self._undone, summed[TimePart.NEW_STEPS]))
        summed[TimePart.REPEATED_STEPS] += self._lost
        return summed

    @property
    def num_starts(self) -> int:
        """Number of processes."""
        return len(self.processes)

    @property
    def num_saves(self) -> int:
        """Number of checkpoints written."""
        return sum(process.num_saves for process in self.processes)

    @property
    def kept_steps(self) -> int:
        """Number of completed steps that the run keeps."""
        if not self.processes:
            return 0
        return max(0, self.last_step - self.processes[0].first_step)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add the next event.

        Args:
            entry: Object in events.jsonl. Malformed ones are ignored.
        """
        try:
            time = as_seconds(entry["time"])
            step = as_step(entry["step"])
            event = str(entry["event"])
        except (ValueError, KeyError, TypeError):
            return
        reading = ClockReading.from_json(entry.get("clock"))
        is_new = reading is not None and (self._reading is None or reading.process != self._reading.process)
        elapsed = time - self.last_time
        if event in STARTS or is_new or not self.processes:
            self._start_process(time, step, reading, entry.get("idle"))
            elapsed = 0.0
        process = self.processes[-1]
        if reading is None:
            process.has_clock = False
            process.parts[TimePart.OTHER] += max(0.0, elapsed)
            process.estimate_steps(self._step_seconds, step)
        else:
            parts = reading.parts.copy()
            parts[TimePart.DOWN] = process.parts[TimePart.DOWN]
            process.parts = parts
            _remove_from_start(process.parts, self._overlap)
        self._reading = reading
        self._count(event, step, entry)
        self.last_time = time
        self.has_ended = event in ENDS

    def goodput_at(self, reading: ClockReading) -> float | None:
        """Return the goodput until a reading of the present process, which has recorded its start."""
        parts = self.parts
        before = self._reading
        if before is None:
            return None
        new_steps = parts[TimePart.NEW_STEPS] + reading.parts[TimePart.NEW_STEPS] - before.parts[TimePart.NEW_STEPS]
        total = parts.total + reading.now - before.now
        if total <= 0:
            return None
        return max(0.0, new_steps) / total

    def add_recorded_steps(self, last_step: int, seconds: float, elapsed: float) -> None:
        """Count steps in metrics.jsonl that are newer than the last event.

        Args:
            last_step: Last of these steps.
            seconds: Seconds of these steps.
            elapsed: Seconds from the last event to the last line.
        """
        parts = self.processes[-1].parts
        parts[TimePart.NEW_STEPS] += seconds
        parts[TimePart.OTHER] += max(0.0, elapsed - seconds)
        self.last_step = last_step

    def _start_process(self, time: float, step: int, reading: ClockReading | None, idle: Any) -> None:
        """Begin the next process: count the time since the last event, and the steps that are undone."""
        process = ProcessTime(step, time, has_clock=reading is not None)
        if reading is not None:
            process.started_at = time - reading.parts.total
        if not self.processes:
            self.processes.append(process)
            self._saved = SavedSteps(step)
            return
        self.processes[-1].estimate_steps(self._step_seconds, step)
        self._return_to(step)
        self._ended += self.processes[-1].parts
        gap = self._gap(process.started_at, reading)
        # A launcher that starts a run again, such as torchrun, has started before the end of the previous process. So has a
        # second command in the same folder.
        self._overlap = max(0.0, -gap)
        gap = max(0.0, gap)
        lost = self._lost_after_last_event(gap, idle)
        self._lost += lost
        process.parts[TimePart.DOWN] = gap - lost
        self.processes.append(process)
        self.has_ended = False

    def _lost_after_last_event(self, gap: float, idle: Any) -> float:
        """Return the seconds of a gap in which the previous process still trained.

        Args:
            gap: Seconds from the last event to the start of the next process.
            idle: Seconds from the last line of metrics.jsonl to that start, None if unknown.
        """
        if idle is None or self.has_ended:
            return 0.0
        try:
            return min(max(0.0, gap - as_seconds(idle)), gap)
        except ValueError:
            return 0.0

    def _gap(self, started_at: float, reading: ClockReading | None) -> float:
        """Return the seconds from the last event to the start of the next process."""
        before = self._reading
        if before is not None and reading is not None and before.boot == reading.boot != "":
            return reading.began - before.now
        return started_at - self.last_time

    def _return_to(self, step: int) -> None:
        """Count the new steps after a checkpoint as undone."""
        kept_now = self.parts[TimePart.NEW_STEPS]
        kept = min(self._saved.seconds_until(step, SavedTime(self.last_step, kept_now)), kept_now)
        self._undone += kept_now - kept
        self._saved.return_to(step, kept)

    def _count(self, event: str, step: int, entry: Mapping[str, Any]) -> None:
        """Count a checkpoint, a rollback and completed steps."""
        if event == "checkpoint":
            self.processes[-1].num_saves += 1
            saved = step
            unsaved = 0.0
            try:
                saved = as_step(entry["saved_step"])
                unsaved = as_seconds(entry["unsaved_seconds"])
            except (ValueError, KeyError, TypeError):
                pass
            self._saved.add(saved, self.parts[TimePart.NEW_STEPS] - unsaved)
            if not self.processes[-1].has_clock:
                self.processes[-1].add_recorded_wait(str(entry.get("detail")))
        elif event in ROLLBACKS:
            self.num_rollbacks += 1
            self._return_to(step)
        self.last_step = step


def _remove_from_start(parts: TimeParts, seconds: float) -> None:
    """Remove seconds from the parts of a process that come first."""
    for part in RESTART_PARTS:
        if part is not TimePart.DOWN:
            removed = min(seconds, parts[part])
            parts[part] -= removed
            seconds -= removed

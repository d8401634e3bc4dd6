"""Time of one process of a run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from megatape.reliability.goodput.parts import TimePart, TimeParts, as_seconds

# Text about a save in the event "checkpoint" of earlier versions.
WAITED = re.compile(r"training waited ([0-9.]+) s$")


@dataclass
class ProcessTime:
    """Time of one process of a run.

    Attributes:
        first_step: Step after which it started.
        started_at: Start of its time, in seconds since 1970. Only for display, because clocks can be set.
        parts: Seconds by part. `down` is the time before it without a process. Steps undone later count as new here.
        num_saves: Checkpoints that it wrote.
        has_clock: Whether it recorded readings. Processes of earlier versions did not.
    """

    first_step: int
    started_at: float
    parts: TimeParts = field(default_factory=TimeParts)
    num_saves: int = 0
    has_clock: bool = True

    def estimate_steps(self, step_seconds: Mapping[int, float], step: int) -> None:
        """Take the steps of a process without readings from metrics.jsonl, which has the steps that the run keeps.

        Args:
            step_seconds: Step -> seconds in metrics.jsonl.
            step: Last step of the process until now.
        """
        if self.has_clock:
            return
        seconds = 0.0
        for number in range(self.first_step + 1, step + 1):
            seconds += step_seconds.get(number, 0.0)
        available = self.parts[TimePart.NEW_STEPS] + self.parts[TimePart.OTHER]
        self.parts[TimePart.NEW_STEPS] = min(seconds, available)
        self.parts[TimePart.OTHER] = available - self.parts[TimePart.NEW_STEPS]

    def add_recorded_wait(self, detail: str) -> None:
        """Count the time that training waited for a save of an earlier version, whose event has `detail`."""
        match = WAITED.search(detail)
        if match is not None:
            self.parts.move(TimePart.OTHER, TimePart.SAVES, min(as_seconds(float(match[1])), self.parts[TimePart.OTHER]))

"""Seconds of new steps until each checkpoint of a run."""

from bisect import bisect_right
from typing import NamedTuple


class SavedTime(NamedTuple):
    """Seconds of new steps until a checkpoint.

    Attributes:
        step: Step of the checkpoint.
        seconds: Seconds of new steps until it, over all processes.
    """

    step: int
    seconds: float


class SavedSteps:
    """Seconds of new steps until each checkpoint that the run keeps.

    Args:
        first_step: Step after which the run started.
    """

    def __init__(self, first_step: int) -> None:
        self._saved = [SavedTime(first_step, 0.0)]

    def add(self, step: int, seconds: float) -> None:
        """Add a checkpoint, unless it is older than the newest one."""
        newest = self._saved[-1]
        if step > newest.step:
            self._saved.append(SavedTime(step, max(newest.seconds, seconds)))

    def return_to(self, step: int, seconds: float) -> None:
        """Forget the checkpoints after a step, with the seconds of new steps until that step."""
        self._saved = [saved for saved in self._saved if saved.step < step]
        self._saved.append(SavedTime(step, seconds))

    def seconds_until(self, step: int, now: SavedTime) -> float:
        """Return the seconds of new steps until a step, interpolated if no event recorded its checkpoint.

        Args:
            step: The step.
            now: Last completed step, and the seconds of new steps until now.
        """
        points = [*self._saved]
        if now.step > points[-1].step:
            points.append(now)
        index = bisect_right(points, step, key=lambda point: point.step)
        if index == 0:
            return points[0].seconds
        before = points[index - 1]
        if index == len(points):
            return before.seconds
        after = points[index]
        share = (step - before.step) / (after.step - before.step)
        return before.seconds + share * (after.seconds - before.seconds)

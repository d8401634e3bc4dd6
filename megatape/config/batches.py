"""Number of samples of each step of a run."""

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchSizes:
    """Number of samples of each step, over all ranks.

    Attributes:
        full: Samples of a step after the warm-up.
        warmup: Stages of the warm-up: samples of a step, and samples of the run at the end of the stage.
    """

    full: int
    warmup: tuple[tuple[int, int], ...] = ()

    def after(self, consumed: int) -> int:
        """Return the samples of the step that follows `consumed` samples."""
        for size, end in self.warmup:
            if consumed < end:
                return size
        return self.full

    def consumed(self, step: int) -> int:
        """Return the samples of the first `step` steps."""
        consumed = 0
        remaining = step
        for size, end in self.warmup:
            steps_of_stage = max(0, -(-(end - consumed) // size))
            steps = min(remaining, steps_of_stage)
            consumed += steps * size
            remaining -= steps
        return consumed + remaining * self.full

    def of_step(self, step: int) -> int:
        """Return the samples of a step, counted from 1."""
        return self.consumed(step) - self.consumed(step - 1)

    def steps(self, samples: int) -> int:
        """Return the smallest number of steps that have `samples` samples or more."""
        return bisect_left(range(samples), samples, key=self.consumed)

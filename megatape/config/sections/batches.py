"""Samples per step, with a batch-size warm-up."""

from bisect import bisect_left
from dataclasses import dataclass

from megatape.utils.values.rounding import divide_up

# Maximum number of samples in a step. A sum of that many digests of 32 bits is below 2^21 * 2^32 = 2^53, so it is exact in
# float64. Checkpoints store the sum for the last step, and resuming computes it again.
MAX_STEP_SAMPLES = 2**21


@dataclass(frozen=True)
class BatchSizes:
    """Samples per step, over all ranks.

    Attributes:
        full: Samples per step after the warm-up.
        warmup: (samples per step, samples consumed when the stage ends) of each warm-up stage.
    """

    full: int
    warmup: tuple[tuple[int, int], ...] = ()

    def after(self, consumed: int) -> int:
        """Return the size of the step after `consumed` samples."""
        for size, end in self.warmup:
            if consumed < end:
                return size
        return self.full

    def consumed(self, step: int) -> int:
        """Return the samples consumed by the first `step` steps."""
        consumed = 0
        remaining = step
        for size, end in self.warmup:
            steps_of_stage = max(0, divide_up(end - consumed, size))
            steps = min(remaining, steps_of_stage)
            consumed += steps * size
            remaining -= steps
        return consumed + remaining * self.full

    def of_step(self, step: int) -> int:
        """Return the size of a step, counting from 1."""
        return self.consumed(step) - self.consumed(step - 1)

    def steps(self, samples: int) -> int:
        """Return the minimum number of steps consuming `samples` samples."""
        return bisect_left(range(samples), samples, key=self.consumed)

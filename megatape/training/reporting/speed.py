"""Training speed: tokens per second, utilization, and remaining time."""

import math
from typing import NamedTuple

from megatape.accounting.whole_model.flops import forward_flops
from megatape.config import ModelConfig, TrainingConfig
from megatape.config.sections.batches import BatchSizes
from megatape.training.reporting.hardware import peak_flops


class Rates(NamedTuple):
    """Rates of all ranks together.

    Attributes:
        tokens: Tokens per second.
        utilization: Model FLOPs utilization, or None if the device's peak rate is unknown.
    """

    tokens: float
    utilization: float | None


class Speed:
    """Measures the speed of training.

    Args:
        model: Model configuration.
        training: Training configuration.
        batches: Batch sizes.
        sequence_length: Tokens per sample.
        world_size: Number of ranks.

    Attributes:
        sample_flops: FLOPs of the forward and backward pass per sample.
    """

    def __init__(
        self,
        model: ModelConfig,
        training: TrainingConfig,
        batches: BatchSizes,
        sequence_length: int,
        world_size: int,
    ) -> None:
        self._length = sequence_length
        self._batches = batches
        self._num_samples = batches.consumed(training.steps)
        # The backward pass costs twice the forward pass. Recomputing activations does not count as useful work.
        self.sample_flops = 3 * forward_flops(model, sequence_length, training.num_shifted_groups)
        self._peak: float | None = None
        peak = peak_flops(training.precision)
        if peak is not None:
            self._peak = peak * world_size
        # Since this process started.
        self._samples = 0
        self._seconds = 0.0

    def add_step(self, step: int, seconds: float) -> None:
        """Count a step that this process has made.

        Args:
            step: Step number, from 1.
            seconds: Step duration.
        """
        self._samples += self._batches.of_step(step)
        self._seconds += seconds

    def of_step(self, step: int, seconds: float) -> Rates:
        """Return the rates of a single step, see `add_step`."""
        return self._rates(self._batches.of_step(step), seconds)

    @property
    def has_steps(self) -> bool:
        """Whether this process has made a step, so that it has a mean speed."""
        return self._samples > 0

    def mean(self) -> Rates:
        """Return the mean rates since this process started, 0 tokens per second before its first step."""
        if not self.has_steps:
            return Rates(0.0, None)
        return self._rates(self._samples, self._seconds)

    def seconds_left(self, step: int) -> float:
        """Return the seconds remaining after `step` at the mean speed, infinity before this process's first step."""
        if not self.has_steps:
            return math.inf
        remaining = self._num_samples - self._batches.consumed(step)
        return self._seconds / self._samples * remaining

    def _rates(self, samples: int, seconds: float) -> Rates:
        speed = samples / seconds
        utilization = None
        if self._peak:
            utilization = speed * self.sample_flops / self._peak
        return Rates(speed * self._length, utilization)

"""Learning rate of each step: a linear warm-up, then the decay of the configured schedule (schedules.py)."""

from dataclasses import dataclass
from typing import Self

from megatape.config import Config, ScheduleConfig
from megatape.config.sections.batches import BatchSizes
from megatape.registry import LEGACY_SCHEDULES, SCHEDULES


@dataclass(frozen=True)
class LearningRate:
    """Learning rate of each step in a run, which only depends on the number of samples before it.

    Attributes:
        schedule: Schedule with its lengths in fractions (ScheduleConfig.in_fractions).
        peak: Learning rate at the peak.
        batches: Number of samples in each step.
        num_steps: Number of steps in the run.
    """

    schedule: ScheduleConfig
    peak: float
    batches: BatchSizes
    num_steps: int

    @classmethod
    def of_run(cls, config: Config) -> Self:
        """Return the learning rate of a configured run."""
        schedule = config.schedule.in_fractions(config.tokens)
        return cls(schedule, config.optimizer.learning_rate, config.batches, config.training.steps)

    def of_step(self, step: int) -> float:
        """Return the learning rate of a step, counting from 0."""
        start = self._length(step)
        end = self._length(step + 1)
        run_length = self._length(self.num_steps)
        return learning_rate(start, run_length, self.peak, self.schedule, step_length=end - start)

    def _length(self, step: int) -> float:
        """Return the length of the first `step` steps, in full-batch steps."""
        return self.batches.consumed(step) / self.batches.full


def learning_rate(start: float, run_length: float, peak: float, schedule: ScheduleConfig, step_length: float = 1.0) -> float:
    """Return the learning rate of one step. The last step of the warm-up has the peak.

    Args:
        start: Length of the run before this step, in full-batch steps (training.global_batch_size samples).
        run_length: Length of the whole run, in full-batch steps.
        peak: Learning rate at the peak.
        schedule: Schedule with its lengths in fractions.
        step_length: Length of this step, in full-batch steps.
    """
    warmup = round(run_length * schedule.warmup_fraction)
    if start < warmup:
        return peak * min(start + step_length, warmup) / warmup
    progress = (start - warmup) / max(1, run_length - warmup)
    schedules = SCHEDULES | LEGACY_SCHEDULES
    decay = schedules[schedule.kind].load()
    return peak * decay(progress, schedule.with_warmup(warmup / run_length))

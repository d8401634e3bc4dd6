"""Learning-rate schedules: a linear warm-up, then one of the decays in megatape/registry.py.

A decay is a function from progress, and the section `schedule` of the configuration, to a fraction of the peak. Progress is the
finished fraction of the steps after the warm-up: 0 at the peak, and 1 right after the last step. Here, lengths in tokens have
already been converted to fractions of the run (ScheduleConfig.in_fractions).
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, PositiveInt

from megatape.config import Config, ScheduleConfig
from megatape.config.batches import BatchSizes
from megatape.config.section import Compared
from megatape.errors import UserError
from megatape.moved_modules import old_names
from megatape.registry import LEGACY_SCHEDULES, SCHEDULES

# Tolerance when comparing fractions, less than one step of any run
ROUNDING = 1e-12


class WsdOptions(ScheduleConfig):
    """Warm-up, stable, decay (https://arxiv.org/abs/2404.06395).

    Attributes:
        decay_fraction: fraction of all steps spent in the decay, at the end
        decay_tokens: length of the decay in tokens, instead of decay_fraction
        decay_shape: linear, or sqrt: 1 - sqrt(progress) (https://arxiv.org/abs/2405.18392)
    """

    decay_fraction: Compared[float] = Field(0.2, ge=0, le=1)
    decay_tokens: Compared[PositiveInt | None] = None
    decay_shape: Compared[Literal["linear", "sqrt"]] = "linear"


def check_new_run(schedule: ScheduleConfig) -> None:
    """Check that a new run may use this schedule.

    Raises:
        UserError: The schedule is from an earlier version.
    """
    if schedule.kind in LEGACY_SCHEDULES:
        raise UserError(
            f"schedule.kind {schedule.kind} is only for resuming runs of earlier versions that began with it: set it to wsd or "
            "cosine"
        )


@dataclass(frozen=True)
class LearningRate:
    """Learning rate of each step in a run.

    Steps are weighted by their number of samples, so the rate after a given number of tokens does not depend on the batch-size
    warm-up.

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
        begin = self._length(step)
        end = self._length(step + 1)
        run_length = self._length(self.num_steps)
        return learning_rate(begin, run_length, self.peak, self.schedule, end - begin)

    def _length(self, step: int) -> float:
        """Return the length of the first `step` steps, in full-batch steps."""
        return self.batches.consumed(step) / self.batches.full


def learning_rate(step: float, steps: float, peak: float, config: ScheduleConfig, size: float = 1.0) -> float:
    """Return the learning rate of one step. The last step of the warm-up has the peak.

    Lengths are in full-batch steps, of training.global_batch_size samples.

    Args:
        step: Length of the run before this step.
        steps: Length of the whole run.
        peak: Learning rate at the peak.
        config: Schedule with its lengths in fractions.
        size: Length of this step.
    """
    warmup = round(steps * config.warmup_fraction)
    if step < warmup:
        return peak * min(step + size, warmup) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    schedules = SCHEDULES | LEGACY_SCHEDULES
    decay = schedules[config.kind].load()
    return peak * decay(progress, config.with_warmup(warmup / steps))


def linear(progress: float, config: ScheduleConfig) -> float:
    """Decay linearly from 1 to `final_fraction`: f + (1 - f) (1 - progress)."""
    final = config.final_fraction
    return final + (1 - final) * (1 - progress)


def cosine(progress: float, config: ScheduleConfig) -> float:
    """Decay along a cosine from 1 to `final_fraction`: f + (1 - f) (1 + cos(π progress)) / 2.

    Loshchilov and Hutter (https://arxiv.org/abs/1608.03983), equation 5, without restarts.
    """
    final = config.final_fraction
    return final + (1 - final) * (0.5 * (1 + math.cos(math.pi * progress)))


def constant(progress: float, config: ScheduleConfig) -> float:
    """Stay at the peak."""
    return 1.0


def wsd(progress: float, config: WsdOptions) -> float:
    """Stay at the peak until the last `decay_fraction` of all steps, then decay to `final_fraction`.

    Hu et al. (https://arxiv.org/abs/2404.06395). The shape `sqrt` is 1 - sqrt(progress) of Hägele et al.
    (https://arxiv.org/abs/2405.18392).
    """
    # Fraction of all steps. Progress leaves out the warm-up.
    remaining = (1 - progress) * (1 - config.warmup_fraction)
    if remaining > config.decay_fraction - ROUNDING:
        return 1.0
    decay_progress = 1 - remaining / config.decay_fraction
    if config.decay_shape == "sqrt":
        decay_progress = math.sqrt(decay_progress)
    return linear(decay_progress, config)


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

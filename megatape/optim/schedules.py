"""Learning-rate schedules: a linear warm-up, then a decay from megatape/registry.py.

A decay maps `progress`, the fraction of the steps after the warm-up that are done, and the section
of the configuration to a fraction of the peak: 1 at progress 0. The step after the last one would have
progress 1. Lengths in tokens are fractions of the run here (ScheduleConfig.in_fractions).
"""

import math
from typing import Literal

from pydantic import Field, PositiveInt

from megatape.config import Config, ScheduleConfig
from megatape.config.section import Compared
from megatape.registry import SCHEDULES

ROUNDING = 1e-12  # of fractions, less than a step of any run


class WsdOptions(ScheduleConfig):
    """Warm-up, stable, decay (https://arxiv.org/abs/2404.06395).

    Attributes:
        decay_fraction: fraction of all steps spent in the decay, at the end
        decay_tokens: its length in tokens, instead of decay_fraction
        decay_shape: linear, or sqrt: 1 - sqrt(progress) (https://arxiv.org/abs/2405.18392)
    """

    decay_fraction: Compared[float] = Field(0.2, ge=0, le=1)
    decay_tokens: Compared[PositiveInt | None] = None
    decay_shape: Compared[Literal["linear", "sqrt"]] = "linear"


class CosineRestartsOptions(ScheduleConfig):
    """Cosine decay with warm restarts (https://arxiv.org/abs/1608.03983).

    Attributes:
        cycle_fraction: fraction of all steps from one restart to the next
        cycle_tokens: its length in tokens, instead of cycle_fraction
    """

    cycle_fraction: Compared[float] = Field(0.25, gt=0, le=1)
    cycle_tokens: Compared[PositiveInt | None] = None


class InverseSqrtOptions(ScheduleConfig):
    """Inverse square root of the steps since the start, as in the original transformer (https://arxiv.org/abs/1706.03762).

    Attributes:
        warmup_fraction: fraction of all steps spent in the warm-up; the rate has halved after four
            times these
    """

    warmup_fraction: Compared[float] = Field(0.02, gt=0, lt=1)


def step_learning_rate(config: Config, step: int) -> float:
    """Learning rate of step `step` (counted from 0) of a run.

    A step counts by its samples, so that the batch-size warm-up leaves the rates where they are by tokens.
    """
    full = config.batches.full
    consumed = config.batches.consumed
    begin = consumed(step) / full
    end = consumed(step + 1) / full
    steps = consumed(config.training.steps) / full
    schedule = config.schedule.in_fractions(config.tokens)
    return learning_rate(begin, steps, config.optimizer.learning_rate, schedule, end - begin)


def learning_rate(step: float, steps: float, peak: float, config: ScheduleConfig, size: float = 1.0) -> float:
    """Learning rate of the step that follows `step` of `steps`. It reaches `peak` at the end of the warm-up.

    size: of the step; all three are in steps of training.global_batch_size samples.
    """
    warmup = round(steps * config.warmup_fraction)
    if step < warmup:
        return peak * min(step + size, warmup) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    if warmup or not isinstance(config, InverseSqrtOptions):  # which needs a fraction without a step of it, too
        config = config.model_copy(update={"warmup_fraction": warmup / steps})  # of whole steps, as above
    return peak * SCHEDULES[config.kind].load()(progress, config)


def linear(progress: float, config: ScheduleConfig) -> float:
    """Linear decay to `final_fraction`."""
    final = config.final_fraction
    return final + (1 - final) * (1 - progress)


def cosine(progress: float, config: ScheduleConfig) -> float:
    """Cosine decay to `final_fraction` (https://arxiv.org/abs/1608.03983, without restarts)."""
    final = config.final_fraction
    return final + (1 - final) * (0.5 * (1 + math.cos(math.pi * progress)))


def constant(progress: float, config: ScheduleConfig) -> float:
    """No decay."""
    return 1.0


def wsd(progress: float, config: WsdOptions) -> float:
    """The peak until the last `decay_fraction` of all steps, then a decay to `final_fraction`."""
    left = (1 - progress) * (1 - config.warmup_fraction)  # as a fraction of all steps
    if left > config.decay_fraction - ROUNDING:
        return 1.0
    done = 1 - left / config.decay_fraction
    return linear(done if config.decay_shape == "linear" else math.sqrt(done), config)


def cosine_restarts(progress: float, config: CosineRestartsOptions) -> float:
    """Cosine decay to `final_fraction` in each cycle of `cycle_fraction` of all steps."""
    cycles = progress * (1 - config.warmup_fraction) / config.cycle_fraction
    return cosine(max(0.0, cycles - math.floor(cycles + ROUNDING)), config)


def inverse_sqrt(progress: float, config: InverseSqrtOptions) -> float:
    """The root of the warm-up's length over the steps since the start."""
    warmup = config.warmup_fraction
    return math.sqrt(warmup / (warmup + progress * (1 - warmup)))

"""Learning rate over the steps: a linear warm-up, then a course that megatape/registry.py names.

A course gives the share of the peak at `progress`, the share of the steps after the warm-up that are done (0 at the peak), so that
the step after the last one would have `final`.
"""

import math

from megatape.config import ScheduleConfig
from megatape.registry import SCHEDULES


def learning_rate(step: int, steps: int, peak: float, config: ScheduleConfig) -> float:
    """Learning rate of the step with this index (the first is 0) out of `steps`; it reaches `peak` at the end of the warm-up."""
    warmup = round(steps * config.warmup_fraction)
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    share: float = SCHEDULES[config.kind].load()(progress, config.final_fraction)
    return peak * share


def linear(progress: float, final: float) -> float:
    """A straight line."""
    return final + (1 - final) * (1 - progress)


def cosine(progress: float, final: float) -> float:
    """Half a period (https://arxiv.org/abs/1608.03983, without restarts)."""
    return final + (1 - final) * (0.5 * (1 + math.cos(math.pi * progress)))


def constant(progress: float, final: float) -> float:
    """The peak, whatever `final` is."""
    return 1.0

"""Learning-rate schedules: a linear warm-up, then a decay from megatape/registry.py.

A decay maps `progress`, the fraction of the steps after the warm-up that are done, to a fraction of the peak: 1 at
progress 0, `final` at progress 1, which the step after the last one would have.
"""

import math

from megatape.config import ScheduleConfig
from megatape.registry import SCHEDULES


def learning_rate(step: int, steps: int, peak: float, config: ScheduleConfig) -> float:
    """Learning rate of step `step` (counted from 0) of `steps`. It reaches `peak` at the end of the warm-up."""
    warmup = round(steps * config.warmup_fraction)
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    fraction: float = SCHEDULES[config.kind].load()(progress, config.final_fraction)
    return peak * fraction


def linear(progress: float, final: float) -> float:
    """Linear decay to `final`."""
    return final + (1 - final) * (1 - progress)


def cosine(progress: float, final: float) -> float:
    """Cosine decay to `final` (https://arxiv.org/abs/1608.03983, without restarts)."""
    return final + (1 - final) * (0.5 * (1 + math.cos(math.pi * progress)))


def constant(progress: float, final: float) -> float:
    """No decay; ignores `final`."""
    return 1.0

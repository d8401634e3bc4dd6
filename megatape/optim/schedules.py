"""Learning-rate schedules: a linear warm-up, then a decay from megatape/registry.py.

A decay maps `progress`, the fraction of the steps after the warm-up that are done, and the section
of the configuration to a fraction of the peak: 1 at progress 0. The step after the last one would have
progress 1.
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
    fraction: float = SCHEDULES[config.kind].load()(progress, config)
    return peak * fraction


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

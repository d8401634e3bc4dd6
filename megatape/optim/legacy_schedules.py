"""Schedules from earlier versions, for resuming runs that started with them, at the same learning rates.

New runs cannot use them (LEGACY_SCHEDULES).
"""

import math
from typing import Self

from pydantic import Field, PositiveInt

from megatape.config import ScheduleConfig
from megatape.config.section import Compared
from megatape.errors import UserError
from megatape.optim.schedules import ROUNDING, cosine
from megatape.registry import LEGACY_SCHEDULES


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


class CosineRestartsOptions(ScheduleConfig):
    """Cosine decay with warm restarts (https://arxiv.org/abs/1608.03983).

    Attributes:
        cycle_fraction: fraction of all steps from one restart to the next
        cycle_tokens: length of a cycle in tokens, instead of cycle_fraction
    """

    cycle_fraction: Compared[float] = Field(0.25, gt=0, le=1)
    cycle_tokens: Compared[PositiveInt | None] = None


class InverseSqrtOptions(ScheduleConfig):
    """Inverse square root of the steps since the start, as in the original transformer (https://arxiv.org/abs/1706.03762).

    Attributes:
        warmup_fraction: fraction of all steps spent in the warm-up; the rate has halved after four times these
    """

    warmup_fraction: Compared[float] = Field(0.02, gt=0, lt=1)

    def with_warmup(self, fraction: float) -> Self:
        # The formula needs a positive length.
        if fraction == 0:
            return self
        return super().with_warmup(fraction)


def cosine_restarts(progress: float, config: CosineRestartsOptions) -> float:
    """Decay along a cosine to `final_fraction`, restarting after each `cycle_fraction` of all steps.

    Loshchilov and Hutter (https://arxiv.org/abs/1608.03983), equation 5, with cycles of equal length.
    """
    cycles = progress * (1 - config.warmup_fraction) / config.cycle_fraction
    num_restarts = math.floor(cycles + ROUNDING)
    cycle_progress = max(0.0, cycles - num_restarts)
    return cosine(cycle_progress, config)


def inverse_sqrt(progress: float, config: InverseSqrtOptions) -> float:
    """Decay as sqrt(warmup / step), with the step counted from the start of the run.

    Vaswani et al. (https://arxiv.org/abs/1706.03762), equation 3, as a fraction of the peak.
    """
    warmup = config.warmup_fraction
    return math.sqrt(warmup / (warmup + progress * (1 - warmup)))

"""Learning-rate schedules: decays after the warm-up (learning_rate.py), listed in megatape/registry.py.

A decay is a function from progress, and the section `schedule` of the configuration, to a fraction of the peak. Progress is the
finished fraction of the steps after the warm-up: 0 at the peak, and 1 right after the last step. Lengths are fractions of the
run (ScheduleConfig.in_fractions).
"""

import math
from typing import Literal

from pydantic import Field, PositiveInt

from megatape.config import ScheduleConfig
from megatape.config.section import Compared

# Tolerance when comparing fractions, less than one step of any run.
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

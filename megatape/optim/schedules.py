"""Learning rate over the steps: linear warm-up, then one of several courses."""

import math

from megatape.config import ScheduleConfig


def learning_rate(step: int, steps: int, peak: float, config: ScheduleConfig) -> float:
    """Learning rate of the step with this index (the first is 0) out of `steps`.

    Rises linearly over the warm-up, reaching `peak` at its end, then follows the course to final_fraction * peak, which the
    step after the last one would have."""
    warmup = round(steps * config.warmup_fraction)
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    if config.kind == "constant":
        return peak
    remaining = 1 - progress if config.kind == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return peak * (config.final_fraction + (1 - config.final_fraction) * remaining)

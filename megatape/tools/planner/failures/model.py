"""Goodput of a run that fails at random, in closed form: expected goodput, and the best interval between checkpoints.

J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (9), 1974.
J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (3), 2006.
"""

import math
from dataclasses import dataclass

SECONDS_PER_DAY = 86_400.0
# Exponent above which a run practically never completes an interval.
MAX_EXPONENT = 700.0


@dataclass(frozen=True)
class FailureCosts:
    """Costs of a run that fails at random.

    Attributes:
        step_seconds: Seconds of a step.
        save_seconds: Seconds that training waits for a save.
        restart_seconds: Seconds from a failure to the first step of the next process, and from the start of the run to its
            first step.
        failures_per_day: Expected failures in a day of all ranks together. Any moment is as likely as any other.
        useful_share: Share of `step_seconds` that goodput counts, without evaluations and the like.
    """

    step_seconds: float
    save_seconds: float
    restart_seconds: float
    failures_per_day: float
    useful_share: float = 1.0

    @property
    def mean_time(self) -> float:
        """Mean seconds between failures."""
        return SECONDS_PER_DAY / self.failures_per_day


def expected_goodput(costs: FailureCosts, interval: int) -> float:
    """Return the long-run share of time spent on steps that the run keeps.

    An interval with work of T seconds and a save of C is complete once T + C seconds pass without a failure. Each failure
    costs a restart of R seconds, which may fail as well. With failures of mean time M, the interval takes
    M exp(R / M) (exp((T + C) / M) - 1) seconds (Daly).

    Args:
        costs: Costs of the run.
        interval: Steps between checkpoints.
    """
    mean_time = costs.mean_time
    work = interval * costs.step_seconds
    exponent = (work + costs.save_seconds) / mean_time
    if exponent + costs.restart_seconds / mean_time > MAX_EXPONENT:
        return 0.0
    seconds = mean_time * math.exp(costs.restart_seconds / mean_time) * math.expm1(exponent)
    return costs.useful_share * work / seconds


def best_interval(costs: FailureCosts, max_interval: int) -> int:
    """Return the steps between checkpoints with the highest `expected_goodput`, which has one maximum.

    Args:
        costs: Costs of the run.
        max_interval: Maximum number of steps.
    """
    low = 1
    high = max_interval
    while low < high:
        middle = (low + high) // 2
        if expected_goodput(costs, middle) < expected_goodput(costs, middle + 1):
            low = middle + 1
        else:
            high = middle
    return low


def young_seconds(costs: FailureCosts) -> float:
    """Return Young's estimate of the best seconds of work between saves: sqrt(2 C M)."""
    return math.sqrt(2 * costs.save_seconds * costs.mean_time)


def daly_seconds(costs: FailureCosts) -> float:
    """Return Daly's estimate of the best seconds of work between saves, of higher order than Young's."""
    save = costs.save_seconds
    mean_time = costs.mean_time
    if save >= 2 * mean_time:
        return mean_time
    ratio = save / (2 * mean_time)
    return math.sqrt(2 * save * mean_time) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save

"""Simulates a run that fails at random many times, for the spread of its goodput."""

from dataclasses import dataclass

import numpy as np

from megatape.tools.planner.failures.model import FailureCosts
from megatape.utils.values.rounding import divide_up

# Number of simulated runs, and limits of the interval that holds 90% of them.
NUM_RUNS = 2000
PERCENTILES = (5, 95)
# A run is given up after this many times its duration without failures.
MAX_SLOWDOWN = 100.0
SEED = 20061


@dataclass(frozen=True)
class SimulatedGoodput:
    """Goodput of simulated runs.

    Attributes:
        mean: Mean.
        low: 5th percentile.
        high: 95th percentile.
        failures: Mean number of failures of a run.
    """

    mean: float
    low: float
    high: float
    failures: float


def simulate(
    costs: FailureCosts, interval: int, steps: int, num_runs: int = NUM_RUNS, seed: int = SEED
) -> SimulatedGoodput | None:
    """Simulate runs from their start to their last step.

    A run restarts, makes steps and saves every `interval` steps and at its end. A failure undoes all steps since the last
    complete save. Times between failures are exponentially distributed, and failures may hit steps, saves and restarts.

    Args:
        costs: Costs of the run.
        interval: Steps between checkpoints.
        steps: Steps of the run.
        num_runs: Number of runs.
        seed: Seed of the failures.

    Returns:
        The goodput, or None if runs do not end within MAX_SLOWDOWN times their duration without failures.
    """
    generator = np.random.default_rng(seed)
    work = steps * costs.step_seconds
    num_intervals = divide_up(steps, interval)
    undisturbed = costs.restart_seconds + work + num_intervals * costs.save_seconds
    interval_seconds = interval * costs.step_seconds + costs.save_seconds

    elapsed = np.zeros(num_runs)
    saved = np.zeros(num_runs)
    failures = np.zeros(num_runs)
    is_running = np.ones(num_runs, dtype=bool)
    while is_running.any():
        uptime = generator.exponential(costs.mean_time, num_runs)
        trained = np.maximum(0.0, uptime - costs.restart_seconds)
        # The last interval may be shorter than the others.
        remaining = undisturbed - costs.restart_seconds - saved * interval_seconds
        ends = is_running & (uptime > costs.restart_seconds) & (trained >= remaining)
        fails = is_running & ~ends
        elapsed[ends] += costs.restart_seconds + remaining[ends]
        elapsed[fails] += uptime[fails]
        failures[fails] += 1
        completed = np.floor(trained / interval_seconds)
        saved[fails] = np.minimum(saved[fails] + completed[fails], num_intervals - 1)
        is_running = fails
        if elapsed.max() > MAX_SLOWDOWN * undisturbed:
            return None

    goodput = costs.useful_share * work / elapsed
    low, high = np.percentile(goodput, PERCENTILES)
    return SimulatedGoodput(float(goodput.mean()), float(low), float(high), float(failures.mean()))

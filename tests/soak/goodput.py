"""python -m tests.soak.goodput --failures 12 --every 60: kill ranks at random, and compare goodput with the planner's.

The planner gets the mean costs of a step, a save and a restart from the ledger of the same run, and the rate of failures. It
doesn't get the steps that failures undo: those it has to predict.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from megatape.reliability.goodput.read import read_run_time
from megatape.reliability.goodput.run_costs import run_costs
from megatape.reliability.goodput.table import time_report
from megatape.run_folder import RunFolder
from megatape.tools.planner.failures.model import SECONDS_PER_DAY, FailureCosts, expected_goodput
from megatape.tools.planner.failures.simulation import simulate
from tests.helpers.runs.small_run import prepare_words, small_config
from tests.soak.launch import ForkedStart
from tests.soak.progress import Progress

NUM_RANKS = 2
INTERVAL = 20
# More steps than any soak makes: failures end it.
STEPS = 1_000_000


@dataclass(frozen=True)
class Comparison:
    """Goodput of a run while ranks were being killed at random, and its estimates.

    Attributes:
        measured: Goodput according to the ledger.
        closed_form: Expected goodput in the long run.
        simulated: Mean of simulated runs of the same length.
        low: 5th percentile of these.
        high: 95th percentile of these.
    """

    measured: float
    closed_form: float
    simulated: float
    low: float
    high: float


def run_with_failures(folder: Path, num_failures: int, mean_seconds: float, seed: int) -> RunFolder:
    """Train on two ranks, killing one of them at random moments and restarting at once. A signal ends the run.

    Args:
        folder: New folder for data, logs and the run directory.
        num_failures: Number of kills.
        mean_seconds: Mean seconds between kills, which are exponentially distributed.
        seed: Seed for choosing moments and ranks.

    Returns:
        The run directory.
    """
    draw = random.Random(seed)
    run = RunFolder(folder / "run")
    raw = small_config(prepare_words(folder), run.directory)
    raw["training"]["steps"] = STEPS
    raw["checkpoint"] = {"interval": INTERVAL}
    config = folder / "config.json"
    config.write_text(json.dumps(raw))
    words = ["--config", str(config), "--resume", "auto"]
    fails_at = time.monotonic() + draw.expovariate(1 / mean_seconds)
    for number in range(num_failures + 1):
        progress = Progress(run, None)
        start = ForkedStart(words, NUM_RANKS, folder / f"start-{number:03d}")
        if number == num_failures:
            _stop_after_steps(start, progress)
            return run
        time.sleep(max(0.0, fails_at - time.monotonic()))
        fails_at = time.monotonic() + draw.expovariate(1 / mean_seconds)
        victims = list(start.ranks().values())
        if victims:
            with suppress(ProcessLookupError):
                os.kill(draw.choice(victims), signal.SIGKILL)
        if progress.met(start):
            start.wait_for_end()
        start.kill()
        print(f"failure {number + 1} of {num_failures}", flush=True)
    raise AssertionError("the last start returns")


def _stop_after_steps(start: ForkedStart, progress: Progress) -> None:
    """Stop a run by a signal, after some steps."""
    start.wait(lambda: progress.steps > 2 * INTERVAL, "steps after the last failure")
    for process in start.ranks().values():
        os.kill(process, signal.SIGTERM)
    start.wait_for_end()


def compare(run: RunFolder, num_failures: int) -> Comparison:
    """Compare a run's goodput with the planner's estimates.

    Args:
        run: Run directory.
        num_failures: Number of failures in it.
    """
    run_time = read_run_time(run)
    parts = run_time.parts
    measured = run_costs(run_time)
    assert parts.goodput is not None
    assert measured.step_seconds is not None
    assert measured.save_seconds is not None
    assert measured.restart_seconds is not None
    costs = FailureCosts(
        step_seconds=measured.step_seconds,
        save_seconds=measured.save_seconds,
        restart_seconds=measured.restart_seconds,
        failures_per_day=num_failures * SECONDS_PER_DAY / parts.total,
        useful_share=measured.useful_share,
    )
    simulated = simulate(costs, INTERVAL, run_time.kept_steps)
    assert simulated is not None
    return Comparison(parts.goodput, expected_goodput(costs, INTERVAL), simulated.mean, simulated.low, simulated.high)


def main() -> int:
    """Return 0 if the estimate is within the tolerance."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.goodput", description=__doc__)
    parser.add_argument("--failures", type=int, default=12, help="number of kills")
    parser.add_argument("--every", type=float, default=60.0, help="mean seconds between them")
    parser.add_argument("--seed", type=int, default=1, help="of moments and ranks")
    parser.add_argument("--tolerance", type=float, default=0.03, help="difference in goodput that is allowed")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="goodput-"))
    run = run_with_failures(folder, args.failures, args.every, args.seed)
    print("\n".join(time_report(read_run_time(run))))
    comparison = compare(run, args.failures)
    for name, value in vars(comparison).items():
        print(f"{name:<12} {value:.1%}")
    print(f"run: {run.directory}")
    return int(abs(comparison.simulated - comparison.measured) > args.tolerance)


if __name__ == "__main__":
    sys.exit(main())

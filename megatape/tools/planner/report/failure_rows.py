"""Rows of the planner's report about failures: the best interval between checkpoints, and the goodput to expect."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megatape.accounting.whole_model.checkpoint_size import checkpoint_bytes
from megatape.config import Config
from megatape.errors import UserError, flag, path_errors
from megatape.reliability.goodput.read import read_run_time
from megatape.reliability.goodput.run_costs import RunCosts, run_costs
from megatape.run_folder import RunFolder
from megatape.tools.planner.failures.model import FailureCosts, best_interval, daly_seconds, expected_goodput, young_seconds
from megatape.tools.planner.failures.simulation import simulate
from megatape.tools.planner.report.resource_rows import Row
from megatape.utils.text.units import format_duration, plural

# Seconds of a restart: detection, launcher, imports, rendezvous, and reading a checkpoint. The goal for large runs.
DEFAULT_RESTART_SECONDS = 120.0
# Bytes per second at which all ranks together write a checkpoint, or copy it to host memory for a save in the background.
DEFAULT_WRITE_RATE = 2e9
DEFAULT_COPY_RATE = 1e10
# Goodput below which no run is simulated.
MIN_GOODPUT = 0.01


@dataclass(frozen=True)
class FailureOptions:
    """Rate of failures, and their costs.

    Attributes:
        failures_per_day: Expected failures in a day of all ranks together.
        restart_seconds: Seconds from a failure to the next first step, None for the ledger's or the default.
        save_seconds: Seconds that training waits for a save, None for the ledger's or an estimate.
        ledger: Run directory to read costs from, None without one.
    """

    failures_per_day: float
    restart_seconds: float | None = None
    save_seconds: float | None = None
    ledger: Path | None = None


@dataclass(frozen=True)
class Cost:
    """A cost in seconds, and where it comes from."""

    seconds: float
    source: str

    def describe(self) -> str:
        """Describe the cost."""
        return f"{self.seconds:.3g} s ({self.source})"


def failure_rows(config: Config, options: FailureOptions, step_seconds: float | None) -> list[Row]:
    """Return the rows on failures.

    Args:
        config: Configuration of the run.
        options: Rate and costs of failures.
        step_seconds: Estimated seconds of a step, None without a cluster. A ledger's replace them.

    Raises:
        UserError: No duration of a step is known, the ledger lacks costs, or a run would never end.
        FileNotFoundError: The ledger's folder is missing.
    """
    measured = RunCosts()
    if options.ledger is not None:
        measured = _read_costs(options.ledger)
    step, save, restart = _costs(config, options, measured, step_seconds)
    costs = FailureCosts(step.seconds, save.seconds, restart.seconds, options.failures_per_day, measured.useful_share)
    steps = config.training.steps
    best = best_interval(costs, steps)
    goodput = expected_goodput(costs, best)
    if goodput < MIN_GOODPUT:
        between = format_duration(costs.mean_time)
        raise UserError(
            f"{flag('failures_per_day')} {options.failures_per_day:g}: a failure every {between}, but a restart takes "
            f"{restart.seconds:.3g} s and a save {save.seconds:.3g} s: the run would hardly make a step; shorten restarts or "
            "use fewer ranks"
        )
    rows = [
        ("failures", f"{options.failures_per_day:g} a day, one every {format_duration(costs.mean_time)}"),
        ("  seconds of a step", step.describe()),
        ("  seconds of a save", save.describe()),
        ("  seconds of a restart", restart.describe()),
    ]
    configured = min(config.checkpoint.interval, steps)
    rows += _interval_rows("goodput with checkpoint.interval", costs, configured, steps)
    rows += _interval_rows("goodput with the best interval", costs, best, steps)
    estimates = (young_seconds(costs), daly_seconds(costs))
    young, daly = (max(1, round(seconds / costs.step_seconds)) for seconds in estimates)
    rows.append(("  the best interval by formulas", f"{young:,} steps by Young, {daly:,} by Daly"))
    return rows


def _costs(config: Config, options: FailureOptions, measured: RunCosts, step_seconds: float | None) -> Sequence[Cost]:
    """Return the costs of a step, a save and a restart: given, read from a ledger, or assumed."""
    recorded = f"recorded in {options.ledger}"
    if measured.step_seconds is not None:
        step = Cost(measured.step_seconds, recorded)
    elif step_seconds is not None:
        step = Cost(step_seconds, "middle of the estimate above")
    else:
        raise UserError(
            f"{flag('failures_per_day')} needs the seconds of a step: add {flag('ledger')} with a run that has made steps, or "
            f"{flag('nodes')}, {flag('gpus_per_node')} and {flag('gpu')}"
        )

    if options.save_seconds is not None:
        save = Cost(options.save_seconds, "given")
    elif measured.save_seconds is not None:
        save = Cost(measured.save_seconds, recorded)
    elif config.checkpoint.background:
        save = Cost(_saved_bytes(config) / DEFAULT_COPY_RATE, f"assumed: copied at {DEFAULT_COPY_RATE / 1e9:g} GB/s")
    else:
        save = Cost(_saved_bytes(config) / DEFAULT_WRITE_RATE, f"assumed: written at {DEFAULT_WRITE_RATE / 1e9:g} GB/s")

    if options.restart_seconds is not None:
        restart = Cost(options.restart_seconds, "given")
    elif measured.restart_seconds is not None:
        restart = Cost(measured.restart_seconds, recorded)
    else:
        restart = Cost(DEFAULT_RESTART_SECONDS, "assumed")
    return step, save, restart


def _saved_bytes(config: Config) -> int:
    return checkpoint_bytes(config.model, config.training, config.optimizer)


@path_errors()
def _read_costs(directory: Path) -> RunCosts:
    folder = RunFolder(directory)
    run_time = read_run_time(folder)
    if not run_time.processes:
        raise UserError(f"{flag('ledger')} {directory}: {folder.events.name} has no event: give run.directory of a started run")
    return run_costs(run_time)


def _interval_rows(name: str, costs: FailureCosts, interval: int, steps: int) -> list[Row]:
    """Return the rows on an interval: expected goodput, and how much it varies between runs of this length.

    Args:
        name: Name of the first row.
        costs: Costs of the run.
        interval: Steps between checkpoints.
        steps: Steps of the run.
    """
    work = format_duration(interval * costs.step_seconds)
    rows = [(name, f"{expected_goodput(costs, interval):.1%}, with a save every {plural(interval, 'step')} or {work}")]
    simulated = simulate(costs, interval, steps)
    spread = "most runs would not finish"
    if simulated is not None:
        limits = f"{simulated.low:.1%} to {simulated.high:.1%}"
        spread = f"{limits}, with {simulated.failures:,.1f} failures on average"
    rows.append((f"  90% of runs of {plural(steps, 'step')}", spread))
    return rows

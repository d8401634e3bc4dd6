"""Goodput of runs that fail at random: the closed form, the simulation, published intervals, and `megatape plan`."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatape.run_folder import RunFolder
from megatape.tools.planner.failures.model import FailureCosts, best_interval, daly_seconds, expected_goodput, young_seconds
from megatape.tools.planner.failures.simulation import simulate
from megatape.utils.files.json_lines import append_lines
from tests.helpers.processes.command import Command, assert_refused

HOUR = 3600.0
DAY = 24 * HOUR


def costs_of(mean_hours: float, save: float = 300.0, restart: float = 600.0, step: float = 10.0) -> FailureCosts:
    return FailureCosts(step, save, restart, 24 / mean_hours)


@pytest.mark.parametrize(("mean_hours", "minutes"), [(24.0, 117.0), (6.0, 57.0), (0.25, 9.1)])
def test_published_intervals(mean_hours: float, minutes: float) -> None:
    """The best intervals in figures 3 to 5 of Daly (2006): saves of 5 min, restarts of 10 min."""
    costs = costs_of(mean_hours, step=1.0)
    assert round(daly_seconds(costs) / 60, len(str(minutes)) - len(str(int(minutes))) - 1) == pytest.approx(minutes, abs=0.51)
    # The exact optimum of the closed form is close to Daly's series, and far from Young's where failures are frequent.
    assert best_interval(costs, 10**6) == pytest.approx(daly_seconds(costs), rel=0.02)


def test_young_is_the_limit_of_rare_failures() -> None:
    costs = costs_of(10_000.0, save=1.0)
    assert young_seconds(costs) == pytest.approx(math.sqrt(2 * 1.0 * 10_000 * HOUR))
    assert daly_seconds(costs) == pytest.approx(young_seconds(costs), rel=1e-3)


def test_the_best_interval_is_the_best() -> None:
    costs = costs_of(3.0)
    best = best_interval(costs, 100_000)
    goodput = expected_goodput(costs, best)
    assert all(expected_goodput(costs, interval) <= goodput for interval in range(1, 3000))
    assert best_interval(costs, 50) == 50


def test_goodput_without_failures() -> None:
    costs = costs_of(1e9)
    assert expected_goodput(costs, 90) == pytest.approx(900 / 1200)


@pytest.mark.parametrize("mean_hours", [0.5, 2.0, 24.0])
@pytest.mark.parametrize("interval", [30, 180, 360])
def test_the_simulation_agrees_with_the_closed_form(mean_hours: float, interval: int) -> None:
    """Long runs, whose start and end do not matter. The mean of 400 runs has a standard error below 0.1 points."""
    costs = costs_of(mean_hours)
    simulated = simulate(costs, interval, interval * 300, num_runs=400)
    assert simulated is not None
    assert simulated.mean == pytest.approx(expected_goodput(costs, interval), abs=0.005)
    assert simulated.low <= simulated.mean <= simulated.high
    expected_failures = interval * 300 * costs.step_seconds / simulated.mean / costs.mean_time
    standard_error = math.sqrt(expected_failures / 400)
    assert simulated.failures == pytest.approx(expected_failures, abs=5 * standard_error)


def test_a_run_without_failures_has_its_exact_time() -> None:
    """25 steps with saves after 10, 20 and at the end."""
    simulated = simulate(costs_of(1e12), 10, 25, num_runs=3)
    assert simulated is not None
    assert simulated.low == simulated.high == pytest.approx(250 / (600 + 250 + 3 * 300))
    assert simulated.failures == 0


def test_a_run_that_never_ends_is_given_up() -> None:
    assert simulate(costs_of(0.01), 360, 3600, num_runs=3) is None


def test_more_failures_cost_more() -> None:
    costs = costs_of(8.0)
    often = replace(costs, failures_per_day=30.0)
    assert expected_goodput(often, 100) < expected_goodput(costs, 100)
    assert best_interval(often, 10_000) < best_interval(costs, 10_000)


@pytest.fixture
def plan(command: Command, raw_config: dict[str, Any], tmp_path: Path) -> Command:
    """Return a function that runs megatape plan on a run of 10,000 steps."""
    raw_config["training"]["steps"] = 10_000
    raw_config["checkpoint"] = {"interval": 500}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw_config))

    def run(*options: object) -> tuple[int, str, str]:
        return command("plan", "--config", path, *options)

    return run


@pytest.fixture
def recorded_run(tmp_path: Path) -> Path:
    """A run with a step of 4 s, a save of 3 s and a restart of 50 s."""
    first = {"process": "1", "boot": "b", "began": 0, "now": 63, "seconds": {"imports": 20, "new_steps": 40, "saves": 3}}
    second = {"process": "2", "boot": "b", "began": 83, "now": 113, "seconds": {"imports": 30}}
    entries = [
        {"time": 1020, "event": "started", "step": 0, "detail": "", "clock": first | {"now": 20, "seconds": {"imports": 20}}},
        {"time": 1063, "event": "checkpoint", "step": 10, "detail": "", "saved_step": 10, "unsaved_seconds": 0, "clock": first},
        {"time": 1113, "event": "resumed", "step": 10, "detail": "", "clock": second},
    ]
    folder = RunFolder(tmp_path / "recorded")
    folder.directory.mkdir()
    append_lines(folder.events, entries)
    return folder.directory


def test_plan_with_a_ledger(plan: Command, recorded_run: Path) -> None:
    status, text, errors = plan("--failures-per-day", "3", "--ledger", recorded_run)
    assert status == 0, errors
    assert "3 a day, one every 8 h" in text
    assert f"4 s (recorded in {recorded_run})" in text
    assert f"3 s (recorded in {recorded_run})" in text
    assert f"50 s (recorded in {recorded_run})" in text
    costs = FailureCosts(4.0, 3.0, 50.0, 3.0)
    best = best_interval(costs, 10_000)
    assert f"{expected_goodput(costs, 500):.1%}, with a save every 500 steps" in text
    assert f"{expected_goodput(costs, best):.1%}, with a save every {best} steps" in text
    assert f"{round(young_seconds(costs) / 4):,} steps by Young, {round(daly_seconds(costs) / 4):,} by Daly" in text


def test_options_come_before_the_ledger(plan: Command, recorded_run: Path) -> None:
    status, text, errors = plan(
        "--failures-per-day", "3", "--ledger", recorded_run, "--save-seconds", "1.5", "--restart-seconds", "9"
    )
    assert status == 0, errors
    assert "1.5 s (given)" in text
    assert "9 s (given)" in text


def test_plan_on_a_cluster_assumes_costs(plan: Command) -> None:
    options = ("--failures-per-day", "3", "--nodes", "1", "--gpus-per-node", "2", "--gpu", "h100")
    status, text, errors = plan(*options)
    assert status == 0, errors
    assert "(middle of the estimate above)" in text
    assert "120 s (assumed)" in text
    assert "s (assumed: written at 2 GB/s)" in text
    _, text, _ = plan(*options, "--set", "checkpoint.background=true")
    assert "s (assumed: copied at 10 GB/s)" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--failures-per-day", "3"), "--failures-per-day needs the seconds of a step: add `--ledger`"),
        (("--failures-per-day", "0"), "--failures-per-day"),
        (("--failures-per-day", "1e6", "--nodes", "1", "--gpus-per-node", "2", "--gpu", "h100"), "hardly make a step"),
        (("--restart-seconds", "3"), "--restart-seconds needs `--failures-per-day`"),
        (("--failures-per-day", "3", "--ledger", "nowhere"), "events.jsonl has no event"),
    ],
)
def test_wrong_options(plan: Command, options: tuple[str, ...], message: str) -> None:
    result = plan(*options)
    assert result[0] == 2
    assert message.replace("`", "") in result[2].replace("`", "")


def test_a_search_knows_no_failures(plan: Command) -> None:
    status, _, errors = plan("--failures-per-day", "3", "--search")
    assert status == 2
    assert "not allowed with" in errors


def test_an_empty_ledger_is_refused(plan: Command, tmp_path: Path) -> None:
    assert_refused(plan("--failures-per-day", "3", "--ledger", tmp_path), "events.jsonl has no event")

"""Seconds from a kill to the next new step, by phase."""

from pathlib import Path

import pytest

from tests.soak.restarts import COLUMNS, LAUNCHERS, PHASES, Case, measure, table


@pytest.mark.slow
# A busy machine needs this long.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("launcher", ["deepspeed", "supervise --ranks", "supervise --ranks --standby"])
def test_phases_of_a_restart(data_directory: Path, tmp_path: Path, launcher: str) -> None:
    """After `kill -9` of a rank, a run continues without missing a phase."""
    phases = measure(Case(launcher, 1, 1), 1, data_directory, tmp_path / "run")
    assert list(phases) == list(PHASES)
    assert min(phases.values()) > -0.05
    seconds_before_the_ranks_meet = phases["process_start"] + phases["imports"]
    assert (seconds_before_the_ranks_meet > 1.0) == ("--standby" not in launcher)
    assert (phases["launch"] > 0) == (launcher == "deepspeed")
    assert abs(phases["other"]) < 0.1 * sum(phases.values())


def test_the_table() -> None:
    cases = {Case(name, 1, 2): dict.fromkeys(PHASES, 1.5) for name in LAUNCHERS}
    lines = table(cases).splitlines()
    assert len(lines) == len(LAUNCHERS) + 2
    assert lines[-1].split("|")[-2].strip() == f"{1.5 * len(PHASES):.1f}"


def test_each_phase_is_in_a_column() -> None:
    assert sorted(name for names in COLUMNS.values() for name in names) == sorted(PHASES)

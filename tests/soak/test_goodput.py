"""The planner estimates the goodput of a run while ranks are being killed at random."""

from pathlib import Path

import pytest

from tests.soak.goodput import compare, run_with_failures


@pytest.mark.slow
# A busy machine needs this long.
@pytest.mark.timeout(1800)
def test_a_run_with_four_failures(tmp_path: Path) -> None:
    """The goodput is within 3 points of the range of 90% of simulated runs. Four failures vary much, so the range is wide.

    `python -m tests.soak.goodput` makes more failures, and compares the mean with a bound of 3 points.
    """
    run = run_with_failures(tmp_path, 4, 25.0, seed=3)
    comparison = compare(run, 4)
    assert comparison.low - 0.03 < comparison.measured < comparison.high + 0.03
    assert comparison.simulated == pytest.approx(comparison.closed_form, abs=0.1)

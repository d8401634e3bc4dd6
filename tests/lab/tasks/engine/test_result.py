"""Wilson's interval against scipy's, also where the normal interval has no width."""

import pytest
from scipy.stats import binomtest

from megatape.lab.tasks.engine.result import wilson


@pytest.mark.parametrize("trials", [1, 2, 20, 1000])
def test_wilson_interval_equals_scipys(trials: int) -> None:
    """At proportions of 0 and 1, p (1 - p) / n would give an interval of no width."""
    for right in {0, 1, trials // 3, trials - 1, trials}:
        expected = binomtest(right, trials).proportion_ci(0.95, "wilson")

        low, high = wilson(right / trials, trials)

        assert low == pytest.approx(100 * expected.low, abs=1e-10)
        assert high == pytest.approx(100 * expected.high, abs=1e-10)
        assert 0 <= low <= 100 * right / trials <= high <= 100
        assert high - low > 0.1


@pytest.mark.parametrize("trials", [1, 2, 20, 1000])
def test_wilson_interval_reaches_the_ends(trials: int) -> None:
    low, _ = wilson(0, trials)
    _, high = wilson(1, trials)

    assert low == 0
    assert high == 100

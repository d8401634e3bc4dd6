"""Wilson's interval against scipy's, and where the normal one has no width."""

import pytest
from scipy.stats import binomtest

from megatape.lab.tasks.engine.result import wilson


@pytest.mark.parametrize("trials", [1, 2, 20, 1000])
def test_wilson_interval_is_scipys(trials: int) -> None:
    """At all proportions, 0 and 1 included, where p (1 - p) / n would give an interval of no width."""
    for right in {0, 1, trials // 3, trials - 1, trials}:
        expected = binomtest(right, trials).proportion_ci(0.95, "wilson")
        low, high = wilson(right / trials, trials)
        assert (low, high) == pytest.approx((100 * expected.low, 100 * expected.high), abs=1e-10)
        assert 0 <= low <= 100 * right / trials <= high <= 100 and high - low > 0.1
    assert wilson(0, trials)[0] == 0 and wilson(1, trials)[1] == 100

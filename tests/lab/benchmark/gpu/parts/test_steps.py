"""Extrapolating a step's time from two depths."""

import pytest

from megatape.errors import UserError
from megatape.lab.benchmark.gpu.parts.steps import seconds_at_depth


def test_extrapolated_time() -> None:
    """A step takes 10 s, and 3 s more for each layer. One slow round does not count."""
    seconds = {2: [16.0, 16.0, 16.0, 16.0, 90.0], 4: [22.0, 22.0, 22.0, 22.0, 22.0]}
    assert seconds_at_depth(32, seconds) == pytest.approx(10 + 3 * 32)


@pytest.mark.parametrize(
    "many",
    [
        pytest.param([15.0, 15.0, 15.0], id="more layers were faster, which would give a negative time"),
        pytest.param([16.0, 16.0, 16.0], id="equal"),
        pytest.param([15.0, 17.0, 19.0], id="slower, but within the quartiles"),
    ],
)
def test_noise_is_not_extrapolated(many: list[float]) -> None:
    with pytest.raises(UserError, match="too close to extrapolate to 32 layers"):
        seconds_at_depth(32, {2: [15.0, 16.0, 17.0], 4: many})

"""Learning-rate schedules."""

import pytest

from megatape.config import ScheduleConfig
from megatape.optim.schedules import learning_rate


@pytest.mark.parametrize(
    ("kind", "final", "expected"),
    [
        ("linear", 0.0, {0: 0.25, 3: 1.0, 4: 1.0, 12: 0.5, 19: 1 / 16}),
        ("linear", 0.2, {4: 1.0, 12: 0.6}),
        ("cosine", 0.0, {3: 1.0, 4: 1.0, 12: 0.5, 8: 0.5 + 0.5 * 0.5**0.5}),
        ("constant", 0.0, {0: 0.25, 1: 0.5, 4: 1.0, 19: 1.0}),
    ],
)
def test_schedules(kind: str, final: float, expected: dict[int, float]) -> None:
    """20 steps with a warm-up of 4."""
    config = ScheduleConfig(kind=kind, warmup_fraction=0.2, final_fraction=final)
    for step, factor in expected.items():
        assert learning_rate(step, 20, 3e-4, config) == pytest.approx(3e-4 * factor)


def test_no_warmup_starts_at_the_peak() -> None:
    assert learning_rate(0, 10, 1.0, ScheduleConfig(warmup_fraction=0.0)) == 1.0

"""Schedules of earlier versions. tests/compatibility/test_schedules.py holds that runs with them resume."""

from typing import Any

import pytest

from megatape.config import ScheduleConfig, parse_config
from megatape.optim.legacy_schedules import CosineRestartsOptions, InverseSqrtOptions
from megatape.optim.schedules import learning_rate

ROOT = 0.5**0.5


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            CosineRestartsOptions(kind="cosine_restarts", cycle_fraction=0.4, final_fraction=0.2),
            {4: 1.0, 8: 0.6, 12: 1.0, 16: 0.6, 19: 0.2 + 0.4 * (1 - 0.9238795325)},
        ),
        (InverseSqrtOptions(kind="inverse_sqrt"), {0: 0.25, 4: 1.0, 8: ROOT, 16: 0.5}),
    ],
)
def test_schedules(config: ScheduleConfig, expected: dict[int, float]) -> None:
    """20 steps with a warm-up of 4."""
    config = config.with_warmup(0.2)
    for step, factor in expected.items():
        assert learning_rate(step, 20, 3e-4, config) == pytest.approx(3e-4 * factor), step


@pytest.mark.parametrize("steps", [7, 30, 97, 1000])
def test_restarts_begin_at_their_step(steps: int) -> None:
    """Exactly at the peak, though fractions are rounded: a step too early or late would fail."""
    for length in range(1, steps - 3):
        restarts = CosineRestartsOptions(kind="cosine_restarts", warmup_tokens=3, cycle_tokens=length).in_fractions(steps)
        assert learning_rate(3 + length, steps, 1.0, restarts) == pytest.approx(1.0, abs=1e-9)


def test_lengths_in_tokens_do_not_depend_on_the_end() -> None:
    """A run whose training.steps grow keeps its learning rates; in fractions they would change."""
    options = InverseSqrtOptions(kind="inverse_sqrt", warmup_tokens=4 * 256)
    short, long = (options.in_fractions(steps * 256) for steps in (20, 50))
    for step in range(20):
        assert learning_rate(step, 20, 1.0, short) == pytest.approx(learning_rate(step, 50, 1.0, long))


@pytest.mark.parametrize("steps", [12, 30, 40, 100])
def test_lengths_count_from_whole_steps_of_the_warm_up(steps: int) -> None:
    """A warm-up that is no whole number of steps is rounded, to none in a run of 12 steps."""
    restarts = CosineRestartsOptions(kind="cosine_restarts", warmup_fraction=0.0333, cycle_tokens=5).in_fractions(steps)
    assert learning_rate(round(0.0333 * steps) + 5, steps, 1.0, restarts) == pytest.approx(1.0, abs=1e-9)
    root = InverseSqrtOptions(kind="inverse_sqrt", warmup_tokens=600).in_fractions(256 * steps)
    assert learning_rate(3, steps, 1.0, root) == pytest.approx((2 / 3) ** 0.5)
    short = InverseSqrtOptions(kind="inverse_sqrt", warmup_fraction=0.0333).in_fractions(256 * steps)
    assert 0 < learning_rate(steps - 1, steps, 1.0, short) < 1


def test_bad_lengths(raw_config: dict[str, Any]) -> None:
    for schedule, message in (
        ({"kind": "cosine_restarts", "cycle_tokens": 0}, r"schedule.cycle_tokens: .*greater than 0"),
        ({"kind": "inverse_sqrt", "warmup_fraction": 0}, r"schedule.warmup_fraction: .*greater than 0"),
    ):
        raw_config["schedule"] = schedule
        with pytest.raises(ValueError, match=message):
            parse_config(raw_config, "test")

"""Schedules of earlier versions. tests/compatibility/test_schedules.py tests that runs with them resume."""

from typing import Any

import pytest

from megatape.config import ScheduleConfig, parse_config
from megatape.optim.learning_rate import learning_rate
from megatape.optim.legacy_schedules import CosineRestartsOptions, InverseSqrtOptions

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
def test_learning_rates_follow_the_schedule(config: ScheduleConfig, expected: dict[int, float]) -> None:
    """The run has 20 steps, 4 of them warm-up. `expected` has the fraction of the peak at some steps."""
    config = config.with_warmup(0.2)
    for step, factor in expected.items():
        assert learning_rate(step, 20, 3e-4, config) == pytest.approx(3e-4 * factor), step


@pytest.mark.parametrize("steps", [7, 30, 97, 1000])
def test_cycles_start_at_the_peak_of_their_first_step(steps: int) -> None:
    """Fractions of the run are rounded: a cycle starting a step early or late would not be at its peak."""
    for length in range(1, steps - 3):
        restarts = CosineRestartsOptions(kind="cosine_restarts", warmup_tokens=3, cycle_tokens=length).in_fractions(steps)
        assert learning_rate(3 + length, steps, 1.0, restarts) == pytest.approx(1.0, abs=1e-9)


def test_lengths_in_tokens_do_not_depend_on_the_end() -> None:
    """A run keeps its learning rates when training.steps grows. With lengths in fractions they would change."""
    options = InverseSqrtOptions(kind="inverse_sqrt", warmup_tokens=4 * 256)
    short = options.in_fractions(20 * 256)
    long = options.in_fractions(50 * 256)
    for step in range(20):
        expected = learning_rate(step, 50, 1.0, long)
        assert learning_rate(step, 20, 1.0, short) == pytest.approx(expected), step


@pytest.mark.parametrize("steps", [12, 30, 40, 100])
def test_cycles_count_from_whole_steps_of_the_warmup(steps: int) -> None:
    """A warm-up of a fractional number of steps is rounded, to none in a run of 12 steps."""
    options = CosineRestartsOptions(kind="cosine_restarts", warmup_fraction=0.0333, cycle_tokens=5)
    warmup_steps = round(0.0333 * steps)
    first_restart = learning_rate(warmup_steps + 5, steps, 1.0, options.in_fractions(steps))
    assert first_restart == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("steps", [12, 30, 40, 100])
def test_inverse_sqrt_counts_from_whole_steps_of_the_warmup(steps: int) -> None:
    """600 tokens are rounded to 2 steps of 256."""
    options = InverseSqrtOptions(kind="inverse_sqrt", warmup_tokens=600).in_fractions(256 * steps)
    assert learning_rate(3, steps, 1.0, options) == pytest.approx((2 / 3) ** 0.5)


@pytest.mark.parametrize("steps", [12, 30, 40, 100])
def test_inverse_sqrt_decays_after_a_warmup_rounded_to_nothing(steps: int) -> None:
    options = InverseSqrtOptions(kind="inverse_sqrt", warmup_fraction=0.0333).in_fractions(256 * steps)
    last = learning_rate(steps - 1, steps, 1.0, options)
    assert last > 0
    assert last < 1


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"kind": "cosine_restarts", "cycle_tokens": 0}, r"schedule.cycle_tokens: .*greater than 0"),
        ({"kind": "inverse_sqrt", "warmup_fraction": 0}, r"schedule.warmup_fraction: .*greater than 0"),
    ],
    ids=["cycle", "warmup"],
)
def test_empty_lengths_are_refused(raw_config: dict[str, Any], schedule: dict[str, Any], message: str) -> None:
    raw_config["schedule"] = schedule
    with pytest.raises(ValueError, match=message):
        parse_config(raw_config, "test")

"""Learning-rate schedules: rates at each step, exact lengths, and lengths that are refused."""

from typing import Any

import pytest

from megatape.config import ScheduleConfig, parse_config
from megatape.errors import UserError
from megatape.optim.learning_rate import learning_rate
from megatape.optim.legacy_schedules import check_new_run
from megatape.optim.schedules import WsdOptions
from megatape.registry import SCHEDULES

ROOT = 0.5**0.5


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (ScheduleConfig(kind="linear"), {0: 0.25, 3: 1.0, 4: 1.0, 12: 0.5, 19: 1 / 16}),
        (ScheduleConfig(kind="linear", final_fraction=0.2), {4: 1.0, 12: 0.6}),
        (ScheduleConfig(kind="cosine"), {3: 1.0, 4: 1.0, 12: 0.5, 8: 0.5 + 0.5 * ROOT}),
        (ScheduleConfig(kind="constant"), {0: 0.25, 1: 0.5, 4: 1.0, 19: 1.0}),
        (WsdOptions(kind="wsd", decay_fraction=0.4), {0: 0.25, 4: 1.0, 11: 1.0, 12: 1.0, 13: 7 / 8, 16: 0.5, 19: 1 / 8}),
        (WsdOptions(kind="wsd", decay_fraction=0.4, final_fraction=0.5), {12: 1.0, 16: 0.75}),
        (WsdOptions(kind="wsd", decay_fraction=0.4, decay_shape="sqrt"), {12: 1.0, 14: 0.5, 16: 1 - ROOT}),
        (WsdOptions(kind="wsd", decay_fraction=0.0), {4: 1.0, 19: 1.0}),
        (WsdOptions(kind="wsd", decay_fraction=0.8), {4: 1.0, 12: 0.5}),
    ],
)
def test_learning_rates_follow_the_schedule(config: ScheduleConfig, expected: dict[int, float]) -> None:
    """The run has 20 steps, 4 of them warm-up. `expected` has the fraction of the peak at some steps."""
    config = config.model_copy(update={"warmup_fraction": 0.2})
    for step, factor in expected.items():
        assert learning_rate(step, 20, 3e-4, config) == pytest.approx(3e-4 * factor), step


def test_no_warmup_starts_at_the_peak() -> None:
    assert learning_rate(0, 10, 1.0, ScheduleConfig(warmup_fraction=0.0)) == 1.0


@pytest.mark.parametrize("steps", [7, 30, 97, 1000])
def test_decays_start_exactly_at_their_step(steps: int) -> None:
    """Fractions of the run are rounded: a decay starting a step early would be below the peak, a late one would not fall."""
    for length in range(1, steps - 3):
        options = WsdOptions(kind="wsd", decay_shape="sqrt", warmup_tokens=3, decay_tokens=length).in_fractions(steps)
        begin = steps - length
        assert learning_rate(begin - 1, steps, 1.0, options) == 1.0, length
        assert learning_rate(begin, steps, 1.0, options) == 1.0, length
        if begin + 1 < steps:
            assert learning_rate(begin + 1, steps, 1.0, options) == pytest.approx(1 - length**-0.5), length


def test_lengths_in_tokens_do_not_depend_on_the_end() -> None:
    """A run keeps the rates of its warm-up when training.steps grows. With lengths in fractions they would change."""
    options = ScheduleConfig(kind="constant", warmup_tokens=4 * 256)
    short = options.in_fractions(20 * 256)
    long = options.in_fractions(50 * 256)
    for step in range(20):
        expected = learning_rate(step, 50, 1.0, long)
        assert learning_rate(step, 20, 1.0, short) == pytest.approx(expected), step


@pytest.mark.parametrize("steps", [12, 30, 40, 100])
def test_lengths_count_from_whole_steps_of_the_warmup(steps: int) -> None:
    """A warm-up of a fractional number of steps is rounded, to none in a run of 12 steps."""
    options = WsdOptions(kind="wsd", warmup_fraction=0.0333, decay_tokens=5, final_fraction=0.0).in_fractions(steps)
    decay = [learning_rate(step, steps, 1.0, options) for step in range(steps - 5, steps)]
    assert decay == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])


def test_an_unknown_kind_lists_no_legacy_schedules(raw_config: dict[str, Any]) -> None:
    raw_config["schedule"] = {"kind": "cosine_restart"}
    with pytest.raises(ValueError, match="schedule.kind is 'cosine_restart': did you mean .*\\? choose one of .*, wsd$"):
        parse_config(raw_config, "test")


@pytest.mark.parametrize("kind", ["cosine_restarts", "inverse_sqrt"])
def test_a_new_run_with_a_legacy_schedule_is_refused(raw_config: dict[str, Any], kind: str) -> None:
    """The message names schedules to use instead."""
    raw_config["schedule"] = {"kind": kind}
    config = parse_config(raw_config, "test")
    with pytest.raises(UserError, match=f"schedule.kind {kind} is only for resuming runs .*: set it to wsd or cosine"):
        check_new_run(config.schedule)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_new_run_may_have_any_schedule_in_the_registry(kind: str) -> None:
    check_new_run(ScheduleConfig(kind=kind))


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            {"kind": "wsd", "warmup_tokens": 512, "decay_tokens": 513},
            r"warmup_tokens 512 and decay_tokens 513 are more .* 1024 tok",
        ),
        (
            {"kind": "wsd", "warmup_fraction": 0.5, "decay_fraction": 0.6},
            r"warmup_fraction 0.5 and decay_fraction 0.6 are more",
        ),
        ({"kind": "linear", "warmup_tokens": 2000}, r"schedule.warmup_tokens 2000 are more than the run"),
        ({"kind": "wsd", "decay_tokens": 0}, r"schedule.decay_tokens: .*greater than 0"),
        ({"kind": "cosine", "decay_tokens": 5}, r"schedule.decay_tokens: not a key of kind cosine, but of wsd"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(raw_config: dict[str, Any], schedule: dict[str, Any], message: str) -> None:
    """The run has 4 steps of 8 samples of 32 tokens."""
    raw_config["schedule"] = schedule
    with pytest.raises(ValueError, match=message):
        parse_config(raw_config, "test")


def test_lengths_that_fill_the_run_are_accepted(raw_config: dict[str, Any]) -> None:
    """Rounding of fractions must not make their sum exceed 1."""
    for steps in range(2, 200):
        raw_config["training"]["steps"] = steps
        raw_config["schedule"] = {"kind": "wsd", "warmup_tokens": 256, "decay_tokens": 256 * (steps - 1)}
        assert parse_config(raw_config, "test").tokens == 256 * steps

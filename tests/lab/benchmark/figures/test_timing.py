"""Timing actions side by side."""

import time

import pytest
import torch

from megatape.lab.benchmark.figures.timing import Spread, Timer, ratio, spread

CPU = torch.device("cpu")


def test_rounds_run_all_actions_in_turn_and_drop_the_first() -> None:
    order: list[str] = []
    reads = iter([0.0, 9.0, 0.0, 9.0, 0.0, 1.0, 0.0, 2.0, 0.0, 3.0, 0.0, 4.0])
    timer = Timer(CPU, 2, clock=lambda: next(reads))

    seconds = timer.times({"a": lambda: order.append("a"), "b": lambda: order.append("b")})

    assert order == ["a", "b"] * 3
    assert seconds == {"a": [1.0, 3.0], "b": [2.0, 4.0]}


def test_short_actions_are_repeated() -> None:
    """The first call compiles and the second is timed. Each round then repeats the action often enough."""
    calls: list[float] = []
    now = 0.0

    def action() -> None:
        nonlocal now
        now += 0.01
        calls.append(now)

    seconds = Timer(CPU, 2, at_least=0.05, clock=lambda: now).times({"a": action})

    assert seconds == {"a": pytest.approx([0.01, 0.01])}
    assert len(calls) in (2 + 3 * 5, 2 + 3 * 6)


# Seconds in three rounds on a machine slowing down to half its speed in the second one
TAPE_SECONDS = [1.5, 3.0, 1.5]
ROPE_SECONDS = [1.0, 2.0, 1.0]


def test_slow_rounds_change_the_spread_of_times_but_not_of_ratios() -> None:
    assert ratio(TAPE_SECONDS, ROPE_SECONDS) == Spread(1.5, 1.5, 1.5)
    assert spread(TAPE_SECONDS) == Spread(1.5, 1.5, 2.25)


def test_comparison_is_of_the_same_round() -> None:
    reads = [0.0, 9.0, 0.0, 9.0]  # the first round does not count
    for tape_seconds, rope_seconds in zip(TAPE_SECONDS, ROPE_SECONDS, strict=True):
        reads += [0.0, tape_seconds, 0.0, rope_seconds]
    clock = iter(reads)

    compared = Timer(CPU, 3, clock=lambda: next(clock)).compare(list, list)

    assert compared == (1.5, 1.5)


def test_quartiles() -> None:
    assert spread([4.0, 1.0, 3.0, 2.0, 5.0]) == Spread(3.0, 2.0, 4.0)
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0)


def test_seconds_of_a_sleeping_action() -> None:
    assert 0.02 <= Timer(CPU, 1).seconds(lambda: time.sleep(0.02)) < 1

"""Schedules of mixtures: shares exact to one sample, and changes of weights."""

from fractions import Fraction

import pytest

from megatape.data.training.mixing.schedule import Phase, Schedule

WEIGHTS = [
    [1],
    [1, 1],
    [7, 3],
    [1, 0, 2],
    [1, 1, 1, 1, 1],
    [97, 2, 1],
    [31, 17, 11, 8, 5, 3, 2, 1],
    [1000, 1, 1],
]


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_shares_are_exact_to_one_sample_in_every_slot(weights: list[int]) -> None:
    """Covers two rounds of the schedule, so that an error adding up between rounds shows."""
    schedule = Schedule([Phase(0, weights)])
    total = sum(weights)
    counts = [0] * len(weights)
    for consumed in range(2 * total):
        corpus, earlier = schedule.turn(consumed)
        assert earlier == counts[corpus]
        assert schedule.counts(consumed) == counts

        counts[corpus] += 1
        for count, weight in zip(counts, weights, strict=True):
            exact_count = Fraction((consumed + 1) * weight, total)
            assert abs(count - exact_count) < 1, (consumed, counts)


def test_every_phase_is_exact_from_its_own_start() -> None:
    """No corpus repeats or skips a sample where two phases meet."""
    phases = [Phase(0, [3, 1]), Phase(7, [0, 1]), Phase(12, [2, 5]), Phase(12, [1, 1])]
    turns = [Schedule(phases).turn(consumed) for consumed in range(40)]
    corpora = [corpus for corpus, _ in turns]
    counts = [corpora.count(0), corpora.count(1)]

    for number in (0, 1):
        samples = [earlier for corpus, earlier in turns if corpus == number]
        assert samples == list(range(counts[number]))
    assert corpora[7:12] == [1] * 5
    assert sum(corpora[12:]) == 14
    assert Schedule(phases).counts(40) == counts

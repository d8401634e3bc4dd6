"""Schedules of mixtures: shares exact to one sample, and changes of weights."""

from fractions import Fraction

import pytest

from megatape.data.training.schedule import Phase, Schedule


@pytest.mark.parametrize(
    "weights", [[1], [1, 1], [7, 3], [1, 0, 2], [1, 1, 1, 1, 1], [97, 2, 1], [31, 17, 11, 8, 5, 3, 2, 1], [1000, 1, 1]], ids=str
)
def test_shares_are_exact_to_one_sample_at_every_place(weights: list[int]) -> None:
    """Also in the second round, and the counts are those of the places before."""
    schedule = Schedule([Phase(0, weights)])
    total = sum(weights)
    counts = [0] * len(weights)
    for place in range(2 * total):
        corpus, earlier = schedule.turn(place)
        assert earlier == counts[corpus]
        assert schedule.counts(place) == counts
        counts[corpus] += 1
        ahead = [abs(count - Fraction((place + 1) * weight, total)) for count, weight in zip(counts, weights, strict=True)]
        assert max(ahead) < 1, (place, counts)


def test_changes_of_the_weights() -> None:
    """Each phase is exact from its own start, and no corpus repeats or leaves out a sample where phases meet."""
    phases = [Phase(0, [3, 1]), Phase(7, [0, 1]), Phase(12, [2, 5]), Phase(12, [1, 1])]
    places = [Schedule(phases).turn(place) for place in range(40)]
    for corpus in (0, 1):
        assert [earlier for found, earlier in places if found == corpus] == list(range(sum(c == corpus for c, _ in places)))
    assert [corpus for corpus, _ in places[7:12]] == [1] * 5
    assert sum(corpus for corpus, _ in places[12:]) == 14
    assert Schedule(phases).counts(40) == [sum(c == corpus for c, _ in places) for corpus in (0, 1)]

"""Search of the learning rate: which rates it tries, and which one it chooses."""

import pytest

from megatape.lab.study.suite.runs.rate_search import MAX_EXTENSIONS, RateGrid, RateSearch, tuning_seeds

RATES = (1e-3, 3e-3, 1e-2)


def search_of(losses: dict[float, list[float]], diverged: tuple[float, ...] = (), extends: bool = True) -> RateSearch:
    """Return a search with two runs for each rate.

    Args:
        losses: Losses of the finished runs by rate.
        diverged: Rates that diverged.
        extends: Whether the search may add rates.
    """
    seeds = tuning_seeds(2)
    by_seed = {rate: dict(zip(seeds, values, strict=False)) for rate, values in losses.items()}
    return RateSearch(RateGrid(RATES, 2, extends), by_seed, diverged)


def test_every_rate_is_tried_with_every_seed() -> None:
    search = search_of({})

    assert search.to_run == [(1e-3, 0), (1e-3, 10_000), (3e-3, 0), (3e-3, 10_000), (1e-2, 0), (1e-2, 10_000)]
    assert search.chosen is None


def test_the_mean_over_seeds_decides() -> None:
    search = search_of({1e-3: [1.0, 4.0], 3e-3: [2.0, 2.0], 1e-2: [3.0, 3.0]})

    assert search.chosen == 3e-3
    assert search.is_bracketed
    assert search.rates == list(RATES)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        pytest.param({1e-3: [3, 3], 3e-3: [2, 2], 1e-2: [1, 1]}, [*RATES, 3e-2], id="above"),
        pytest.param({1e-3: [3, 3], 3e-3: [2, 2], 1e-2: [1, 1], 3e-2: [0, 0]}, [*RATES, 3e-2, 1e-1], id="twice"),
        pytest.param({1e-3: [1, 1], 3e-3: [2, 2], 1e-2: [3, 3]}, [3e-4, *RATES], id="below"),
        pytest.param({1e-3: [1, 1], 3e-3: [1, 1], 1e-2: [1, 1]}, [3e-4, *RATES], id="ties"),
    ],
)
def test_a_best_rate_at_an_end_adds_the_next(losses: dict[float, list[float]], expected: list[float]) -> None:
    search = search_of(losses)

    assert search.rates == pytest.approx(expected)
    assert search.chosen is None
    assert not search.is_bracketed


def test_an_added_rate_that_is_worse_ends_the_search() -> None:
    search = search_of({1e-3: [3, 3], 3e-3: [2, 2], 1e-2: [1, 1], 3e-2: [2, 2]})

    assert search.chosen == 1e-2
    assert search.is_bracketed


def test_a_diverged_rate_brackets_as_well() -> None:
    search = search_of({1e-3: [3, 3], 3e-3: [2, 2], 1e-2: [1, 1]}, diverged=(3e-2,))

    assert search.chosen == 1e-2
    assert search.is_bracketed
    assert (3e-2, 0) not in search.to_run


def test_the_search_ends_after_some_rates() -> None:
    """If the loss falls with every added rate, the last one is chosen, and counts as one at an end."""
    rates = [1e-5, 3e-5, 1e-4, 3e-4, *RATES]
    assert len(rates) == MAX_EXTENSIONS + len(RATES)

    search = search_of({rate: [rate, rate] for rate in rates})

    assert search.rates == rates
    assert search.chosen == 1e-5
    assert not search.is_bracketed


def test_rates_stay_below_one() -> None:
    grid = RateGrid((0.1, 0.3), 1, extends=True)

    assert max(grid.candidates) == 0.3


def test_fixed_rates_are_not_extended() -> None:
    search = search_of({1e-3: [3, 3], 3e-3: [2, 2], 1e-2: [1, 1]}, extends=False)

    assert search.rates == list(RATES)
    assert search.chosen == 1e-2
    assert not search.is_bracketed


def test_all_rates_diverged() -> None:
    search = search_of({}, diverged=RATES)

    assert search.chosen is None
    assert search.to_run == []


def test_a_single_rate_is_not_searched() -> None:
    search = RateSearch(RateGrid((0.1,), 2, extends=True), {}, ())

    assert search.chosen == 0.1
    assert search.to_run == []
    assert search.is_bracketed

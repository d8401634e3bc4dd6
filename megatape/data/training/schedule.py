"""The order of a mixture: whose turn it is, by exact shares, and the next sample in that corpus's own order."""

import heapq
import itertools
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from megatape.data.training.order import SampleLocation, SampleOrder
from megatape.errors import UserError

MAX_CYCLE = 100_000  # samples after which a schedule repeats: a table of that many, made at the start of a run
TEMPERED_CYCLE = 10_000  # that of shares that follow from sizes


class MixtureOrder(SampleOrder):
    """The orders of all corpora, taken in turn: of one corpus, its own order.

    Args:
        schedule: Which corpus is next, by number.
        orders: Order of each corpus, by name, in the order of the numbers.
    """

    def __init__(self, schedule: "Schedule", orders: Mapping[str, SampleOrder]) -> None:
        self._schedule, self._orders, self._by_number = schedule, orders, list(orders.values())

    def locate(self, consumed: int) -> SampleLocation:
        corpus, earlier = self._schedule.turn(consumed)
        return self._by_number[corpus].locate(earlier)

    def upcoming_shards(self, location: SampleLocation) -> list[int]:
        return self._orders[location.corpus].upcoming_shards(location)

    def counts(self, samples: int) -> dict[str, int]:
        """Number of samples of each corpus among the first `samples`."""
        return dict(zip(self._orders, self._schedule.counts(samples), strict=True))


class Schedule:
    """Which corpus each sample comes from, exact to one sample at every place.

    Let w be a corpus's weight over the sum of weights. Of the first n samples of a phase it has between n w - 1 and n w + 1,
    both excluded, for every n.

    Args:
        phases: For each the first sample that it holds for, the first one's 0, and the integer weights of all corpora.
    """

    def __init__(self, phases: Sequence[tuple[int, Sequence[int]]]) -> None:
        assert phases[0][0] == 0
        self._starts = [start for start, _ in phases]
        self._cycles = [_Cycle(weights) for _, weights in phases]
        lengths = [end - start for start, end in itertools.pairwise(self._starts)]
        counts = [cycle.counts(length) for cycle, length in zip(self._cycles, lengths, strict=False)]
        self._before = np.cumsum([np.zeros(len(phases[0][1]), np.int64), *counts], axis=0)  # [phases, corpora]

    def turn(self, consumed: int) -> tuple[int, int]:
        """The corpus of the sample after `consumed` others, and how many of these are of the same corpus."""
        phase = self._phase(consumed)
        corpus, earlier = self._cycles[phase].turn(consumed - self._starts[phase])
        return corpus, self._before.item(phase, corpus) + earlier

    def counts(self, samples: int) -> list[int]:
        """Number of samples of each corpus among the first `samples`."""
        phase = self._phase(samples)
        counts: list[int] = (self._before[phase] + self._cycles[phase].counts(samples - self._starts[phase])).tolist()
        return counts

    def _phase(self, consumed: int) -> int:
        return bisect_right(self._starts, consumed) - 1


class _Cycle:
    """One round of a schedule, which repeats: each corpus comes as often as its weight says."""

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = np.array(weights, np.int64) // gcd(*weights)
        self._corpora = _spread(self._weights.tolist())
        self._earlier = np.empty(self._corpora.size, np.int64)  # samples of the same corpus before, in the round
        for corpus, weight in enumerate(self._weights):
            self._earlier[self._corpora == corpus] = np.arange(weight)

    def turn(self, consumed: int) -> tuple[int, int]:
        rounds, place = divmod(consumed, self._corpora.size)
        corpus: int = self._corpora.item(place)
        return corpus, rounds * self._weights.item(corpus) + self._earlier.item(place)

    def counts(self, samples: int) -> np.ndarray:
        rounds, place = divmod(samples, self._corpora.size)
        return rounds * self._weights + np.bincount(self._corpora[:place], minlength=self._weights.size)


def _spread(weights: Sequence[int]) -> np.ndarray:
    """The corpus of each place of a round.

    The c-th sample of a corpus may come as soon as that leaves it less than one ahead of its share, and must before it is one
    behind. Of those that may come, the one that must first does. As for any unit tasks of which some order is in time, this
    order is: the windows are those of Baruah et al., "Proportionate progress" (1996), which prove that one exists.
    """
    total = sum(weights)
    waiting = heapq.merge(*(_windows(corpus, weight, total) for corpus, weight in enumerate(weights)))
    upcoming = next(waiting, None)
    ready: list[tuple[int, int]] = []
    order = np.empty(total, np.int32)
    for place in range(total):
        while upcoming is not None and upcoming[0] <= place:
            heapq.heappush(ready, upcoming[1:])
            upcoming = next(waiting, None)
        end, order[place] = heapq.heappop(ready)
        assert place < end
    return order


def _windows(corpus: int, weight: int, total: int) -> Iterator[tuple[int, int, int]]:
    """For each sample of a corpus the first place where it may come, the one before which it must, and the corpus."""
    for c in range(weight):
        yield c * total // weight, -(-(c + 1) * total // weight), corpus


def whole_weights(weights: Sequence[float]) -> list[int]:
    """Whole numbers in exactly the proportions of decimal ones: 0.7 and 0.3 are 7 and 3.

    Raises UserError if their sum would be above MAX_CYCLE.
    """
    decimals = [Fraction(repr(weight)) for weight in weights]
    factor = lcm(*(decimal.denominator for decimal in decimals))
    multiples = [int(decimal * factor) for decimal in decimals]
    whole = [weight // gcd(*multiples) for weight in multiples]
    if sum(whole) > MAX_CYCLE:
        raise UserError(
            f"the weights {', '.join(map(str, weights))} repeat only after {sum(whole):,} samples, the most is {MAX_CYCLE:,}: "
            "round them to fewer digits"
        )
    return whole


def tempered_weights(tokens: Sequence[int], temperature: float) -> list[int]:
    """Whole weights, about TEMPERED_CYCLE in all and none 0, in proportion to tokens^(1/temperature)."""
    sizes = np.array(tokens, np.float64)
    shares = np.exp(np.log(sizes / sizes.max()) / temperature)
    return [max(1, round(weight)) for weight in (TEMPERED_CYCLE * shares / shares.sum()).tolist()]

"""Which corpus each sample of a mixture comes from: a function of integers, exact to one sample at every place."""

import heapq
import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from megatape.errors import UserError

MAX_CYCLE = 100_000  # samples after which a schedule repeats: a table of that many, made at the start of a run
TEMPERED_CYCLE = 10_000  # that of shares that follow from sizes


class Schedule:
    """phases: for each the first sample that it holds for, the first one's 0, and the whole weights of all corpora.

    Let w be a corpus's weight over the sum of weights. Of the first n samples of a phase it has between n w - 1 and n w + 1,
    both excluded, for every n.
    """

    def __init__(self, phases: Sequence[tuple[int, Sequence[int]]]) -> None:
        assert phases[0][0] == 0
        self._starts = [start for start, _ in phases]
        self._cycles = [_Cycle(weights) for _, weights in phases]
        self._before = [np.zeros(len(phases[0][1]), np.int64)]  # samples of each corpus before a phase
        for cycle, (start, end) in zip(self._cycles, itertools.pairwise(self._starts), strict=False):
            self._before.append(self._before[-1] + cycle.counts(end - start))

    def locate(self, place: int) -> tuple[int, int]:
        """The corpus of the sample that comes after `place` others, and how many of these are of the same corpus."""
        phase = self._phase(place)
        corpus, earlier = self._cycles[phase].locate(place - self._starts[phase])
        return corpus, int(self._before[phase][corpus]) + earlier

    def counts(self, place: int) -> list[int]:
        """Samples of each corpus among the first `place`."""
        phase = self._phase(place)
        counts: list[int] = (self._before[phase] + self._cycles[phase].counts(place - self._starts[phase])).tolist()
        return counts

    def _phase(self, place: int) -> int:
        return bisect_right(self._starts, place) - 1


class _Cycle:
    """One round of a schedule, which repeats: each corpus comes as often as its weight says."""

    def __init__(self, weights: Sequence[int]) -> None:
        divisor = gcd(*weights)
        self._weights = np.array(weights, np.int64) // divisor
        self._corpora = _spread(self._weights.tolist())
        self._earlier = np.empty(self._corpora.size, np.int64)  # samples of the same corpus before, in the round
        for corpus, weight in enumerate(self._weights):
            self._earlier[self._corpora == corpus] = np.arange(weight)

    def locate(self, place: int) -> tuple[int, int]:
        rounds, index = divmod(place, self._corpora.size)
        corpus = int(self._corpora[index])
        return corpus, rounds * int(self._weights[corpus]) + int(self._earlier[index])

    def counts(self, place: int) -> np.ndarray:
        rounds, index = divmod(place, self._corpora.size)
        return rounds * self._weights + np.bincount(self._corpora[:index], minlength=self._weights.size)


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
    """For each sample of a corpus the place from which on it may come, the one before which it must, and the corpus."""
    for c in range(weight):
        yield c * total // weight, -(-(c + 1) * total // weight), corpus


def whole_weights(weights: Sequence[float]) -> list[int]:
    """Whole numbers in exactly the proportions of decimal ones: 0.7 and 0.3 are 7 and 3.

    Raises UserError if their sum would be above MAX_CYCLE.
    """
    decimals = [Fraction(repr(weight)) for weight in weights]
    factor = lcm(*(decimal.denominator for decimal in decimals))
    whole = [int(decimal * factor) for decimal in decimals]
    whole = [weight // gcd(*whole) for weight in whole]
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

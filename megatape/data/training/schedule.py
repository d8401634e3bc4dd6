"""Schedule of a mixture: the corpus of each sample."""

import heapq
import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from megatape.errors import UserError

# Maximum number of samples after which a schedule repeats. The start of a run makes a table of this size.
MAX_CYCLE = 100_000
# Number of samples after which a schedule with tempered weights repeats, approximately.
TEMPERED_CYCLE = 10_000


class Schedule:
    """Interleaves corpora. Any prefix of the schedule matches the weights to within one sample.

    Let w be a corpus's weight over the sum of weights. The first n samples of a phase have more than n w - 1 and fewer than
    n w + 1 samples of the corpus, for every n.

    Args:
        phases: First sample of each phase, 0 for the first one, and the integer weights of all corpora in it.
    """

    def __init__(self, phases: Sequence[tuple[int, Sequence[int]]]) -> None:
        assert phases[0][0] == 0
        self._starts = [start for start, _ in phases]
        self._cycles = [_Cycle(weights) for _, weights in phases]
        num_corpora = len(phases[0][1])
        # The last phase has no end, so nothing comes after it.
        counts = [np.zeros(num_corpora, np.int64)]
        for cycle, (start, end) in zip(self._cycles, itertools.pairwise(self._starts), strict=False):
            counts.append(cycle.counts(end - start))
        # Samples of each corpus before each phase, [phases, corpora].
        self._before = np.cumsum(counts, axis=0)

    def turn(self, consumed: int) -> tuple[int, int]:
        """Return the corpus of the sample after `consumed` others, and how many of the others belong to this corpus."""
        phase = self._phase(consumed)
        corpus, earlier = self._cycles[phase].turn(consumed - self._starts[phase])
        return corpus, self._before.item(phase, corpus) + earlier

    def counts(self, samples: int) -> list[int]:
        """Return the number of samples of each corpus among the first `samples`."""
        phase = self._phase(samples)
        in_phase = self._cycles[phase].counts(samples - self._starts[phase])
        return (self._before[phase] + in_phase).tolist()

    def _phase(self, consumed: int) -> int:
        return bisect_right(self._starts, consumed) - 1


class _Cycle:
    """One round of a schedule, which repeats. Each corpus comes as often in it as its reduced weight says."""

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = np.array(weights, np.int64) // gcd(*weights)
        self._corpora = _pfair_order(self._weights.tolist())
        # Number of samples of the same corpus before each place of the round.
        self._earlier = np.empty(self._corpora.size, np.int64)
        for corpus, weight in enumerate(self._weights):
            self._earlier[self._corpora == corpus] = np.arange(weight)

    def turn(self, consumed: int) -> tuple[int, int]:
        rounds, place = divmod(consumed, self._corpora.size)
        corpus: int = self._corpora.item(place)
        earlier = rounds * self._weights.item(corpus) + self._earlier.item(place)
        return corpus, earlier

    def counts(self, samples: int) -> np.ndarray:
        rounds, place = divmod(samples, self._corpora.size)
        in_round = np.bincount(self._corpora[:place], minlength=self._weights.size)
        return rounds * self._weights + in_round


def _pfair_order(weights: Sequence[int]) -> np.ndarray:
    """Return the corpus of each place of a round, int32 [sum of weights].

    This is a Pfair schedule, run earliest deadline first (Baruah et al., "Proportionate progress", 1996). Sample c of a corpus
    is released at place floor(c total / weight), when it puts the corpus less than one sample ahead, and is due before place
    ceil((c + 1) total / weight), when the corpus would be one sample behind. Earliest deadline first meets the deadlines of
    unit tasks whenever any order does, and the paper proves that one does.

    Args:
        weights: Weight of each corpus.
    """
    total = sum(weights)
    windows = [_windows(corpus, weight, total) for corpus, weight in enumerate(weights)]
    waiting = heapq.merge(*windows)
    upcoming = next(waiting, None)
    # Deadline and corpus of released samples.
    ready: list[tuple[int, int]] = []
    order = np.empty(total, np.int32)
    for place in range(total):
        while upcoming is not None and upcoming[0] <= place:
            _, deadline, corpus = upcoming
            heapq.heappush(ready, (deadline, corpus))
            upcoming = next(waiting, None)
        deadline, corpus = heapq.heappop(ready)
        assert place < deadline
        order[place] = corpus
    return order


def _windows(corpus: int, weight: int, total: int) -> Iterator[tuple[int, int, int]]:
    """Yield release, deadline and corpus of each sample of a corpus in a round."""
    for c in range(weight):
        release = c * total // weight
        deadline = -(-(c + 1) * total // weight)
        yield release, deadline, corpus


def integer_weights(weights: Sequence[float]) -> list[int]:
    """Return integers in exactly the proportions of decimal weights, such as 7 and 3 for 0.7 and 0.3.

    Raises:
        UserError: The sum of the integers would exceed MAX_CYCLE.
    """
    decimals = [Fraction(repr(weight)) for weight in weights]
    factor = lcm(*(decimal.denominator for decimal in decimals))
    multiples = [int(decimal * factor) for decimal in decimals]
    divisor = gcd(*multiples)
    integers = [multiple // divisor for multiple in multiples]
    cycle = sum(integers)
    if cycle > MAX_CYCLE:
        shown = ", ".join(map(str, weights))
        raise UserError(
            f"the weights {shown} repeat only after {cycle:,} samples, the most is {MAX_CYCLE:,}: round them to fewer digits"
        )
    return integers


def tempered_weights(tokens: Sequence[int], temperature: float) -> list[int]:
    """Return positive integer weights in proportion to tokens^(1/temperature). Their sum is about TEMPERED_CYCLE.

    Args:
        tokens: Number of tokens of each corpus.
        temperature: 1 for weights by size. Higher temperatures give smaller corpora more weight.
    """
    sizes = np.array(tokens, np.float64)
    powers = np.exp(np.log(sizes / sizes.max()) / temperature)
    scaled = TEMPERED_CYCLE * powers / powers.sum()
    return [max(1, round(weight)) for weight in scaled.tolist()]

"""Schedule of a mixture: decides from which corpus each sample comes."""

import heapq
import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import gcd
from typing import NamedTuple

import numpy as np


class Phase(NamedTuple):
    """Part of a run with constant weights.

    Attributes:
        start: Samples before the phase.
        weights: Each corpus's integer weight.
    """

    start: int
    weights: Sequence[int]


class Turn(NamedTuple):
    """Entry of a schedule.

    Attributes:
        corpus: Number of the corpus to take a sample from.
        earlier: Samples already taken from this corpus.
    """

    corpus: int
    earlier: int


class Schedule:
    """Interleaves corpora, keeping every prefix of a phase within one sample of the weights.

    Let w be a corpus's weight over the sum of weights. For every n, the first n samples of a phase include more than n w - 1
    and fewer than n w + 1 samples from the corpus.

    Args:
        phases: Phases in order. The first one starts at 0.
    """

    def __init__(self, phases: Sequence[Phase]) -> None:
        assert phases[0].start == 0
        self._starts = [phase.start for phase in phases]
        self._cycles = [_Cycle(phase.weights) for phase in phases]
        num_corpora = len(phases[0].weights)
        # The last phase has no end, so only the others are counted.
        counts = [np.zeros(num_corpora, np.int64)]
        for cycle, (start, end) in zip(self._cycles, itertools.pairwise(self._starts), strict=False):
            counts.append(cycle.counts(end - start))
        # Samples from each corpus before each phase, [phases, corpora].
        self._before = np.cumsum(counts, axis=0)

    def turn(self, consumed: int) -> Turn:
        """Return the turn after `consumed` samples."""
        phase = self._phase(consumed)
        turn = self._cycles[phase].turn(consumed - self._starts[phase])
        num_before = self._before.item(phase, turn.corpus)
        return Turn(turn.corpus, num_before + turn.earlier)

    def counts(self, samples: int) -> list[int]:
        """Return how many of the first `samples` samples come from each corpus."""
        phase = self._phase(samples)
        in_phase = self._cycles[phase].counts(samples - self._starts[phase])
        return (self._before[phase] + in_phase).tolist()

    def _phase(self, consumed: int) -> int:
        return bisect_right(self._starts, consumed) - 1


class _Cycle:
    """One round of a repeating schedule. Each corpus occurs as often as its reduced weight says."""

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = np.array(weights, np.int64) // gcd(*weights)
        self._corpora = _pfair_order(self._weights.tolist())
        # Samples from the same corpus before each slot of the round.
        self._earlier = np.empty(self._corpora.size, np.int64)
        for corpus, weight in enumerate(self._weights):
            self._earlier[self._corpora == corpus] = np.arange(weight)

    def turn(self, consumed: int) -> Turn:
        """Return the turn after `consumed` samples of this phase."""
        rounds, slot = divmod(consumed, self._corpora.size)
        corpus: int = self._corpora.item(slot)
        earlier = rounds * self._weights.item(corpus) + self._earlier.item(slot)
        return Turn(corpus, earlier)

    def counts(self, samples: int) -> np.ndarray:
        """Return how many of this phase's first `samples` samples come from each corpus, int64 [corpora]."""
        rounds, slot = divmod(samples, self._corpora.size)
        in_round = np.bincount(self._corpora[:slot], minlength=self._weights.size)
        return rounds * self._weights + in_round


def _pfair_order(weights: Sequence[int]) -> np.ndarray:
    """Return the corpus at each slot of a round, int32 [sum of weights].

    This is a Pfair schedule, run earliest deadline first (Baruah et al., "Proportionate progress", 1996). Sample c of a corpus
    is released at slot floor(c total / weight), putting the corpus less than one sample ahead, and is due before slot
    ceil((c + 1) total / weight), where the corpus would be one sample behind. For unit tasks, earliest deadline first meets
    all deadlines whenever some order does, and the paper proves that one does.
    """
    total = sum(weights)
    windows = [_windows(corpus, weight, total) for corpus, weight in enumerate(weights)]
    waiting = heapq.merge(*windows)
    upcoming = next(waiting, None)
    # (deadline, corpus) of released samples.
    ready: list[tuple[int, int]] = []
    order = np.empty(total, np.int32)
    for slot in range(total):
        while upcoming is not None and upcoming[0] <= slot:
            _, deadline, corpus = upcoming
            heapq.heappush(ready, (deadline, corpus))
            upcoming = next(waiting, None)
        deadline, corpus = heapq.heappop(ready)
        assert slot < deadline
        order[slot] = corpus
    return order


def _windows(corpus: int, weight: int, total: int) -> Iterator[tuple[int, int, int]]:
    """Yield (release, deadline, corpus) for each of a corpus's samples in a round."""
    for c in range(weight):
        release = c * total // weight
        deadline = -(-(c + 1) * total // weight)
        yield release, deadline, corpus

"""Sample order of a mixture: a schedule chooses the corpus, and the corpus's order chooses the sample."""

from collections.abc import Mapping

from megatape.data.training.datasets.dataset import Dataset
from megatape.data.training.mixing.order import SampleLocation, SampleOrder, ShuffledOrder, WindowOrder
from megatape.data.training.mixing.schedule import Schedule


class MixtureOrder(SampleOrder):
    """Interleaves the orders of all corpora. A single corpus keeps its order.

    Args:
        schedule: Schedule over corpus numbers.
        orders: Each corpus's order, by name. Corpora are numbered as listed here.
    """

    def __init__(self, schedule: Schedule, orders: Mapping[str, SampleOrder]) -> None:
        self._schedule = schedule
        self._orders = orders
        self._by_number = list(orders.values())

    def locate(self, consumed: int) -> SampleLocation:
        turn = self._schedule.turn(consumed)
        return self._by_number[turn.corpus].locate(turn.earlier)

    def upcoming_shards(self, location: SampleLocation) -> list[int]:
        return self._orders[location.corpus].upcoming_shards(location)

    def counts(self, samples: int) -> dict[str, int]:
        """Return how many of the first `samples` samples come from each corpus."""
        return dict(zip(self._orders, self._schedule.counts(samples), strict=True))


def corpus_order(name: str, corpus: Dataset, seed: int) -> SampleOrder:
    """Return a corpus's own sample order."""
    if corpus.window:
        return WindowOrder(name, corpus.shard_samples, corpus.window, seed)
    return ShuffledOrder(name, corpus.num_samples, seed)

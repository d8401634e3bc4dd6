"""Order of the samples of a mixture: a schedule chooses the corpus, whose own order has the next sample."""

from collections.abc import Mapping

from megatape.data.training.dataset import Dataset
from megatape.data.training.order import SampleLocation, SampleOrder, ShuffledOrder, WindowOrder
from megatape.data.training.schedule import Schedule


class MixtureOrder(SampleOrder):
    """Interleaves the orders of all corpora. A single corpus keeps its order.

    Args:
        schedule: Schedule of the corpora, by their numbers.
        orders: Order of each corpus, by name. Corpora are numbered by their place in it.
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
        """Return the number of samples of each corpus among the first `samples`."""
        return dict(zip(self._orders, self._schedule.counts(samples), strict=True))


def corpus_order(name: str, corpus: Dataset, seed: int) -> SampleOrder:
    """Return the order of a corpus alone."""
    if corpus.window:
        return WindowOrder(name, corpus.shard_samples, corpus.window, seed)
    return ShuffledOrder(name, corpus.num_samples, seed)

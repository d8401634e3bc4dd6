"""Mixture of the training splits of a run, in exact shares.

A schedule chooses the corpus, whose own order has the next sample. A single corpus is a mixture of one.
"""

from bisect import bisect_right
from collections.abc import Mapping
from typing import TypeVar

from megatape.config.batches import BatchSizes
from megatape.config.data import DataConfig
from megatape.data.shards.hashes import content_hash
from megatape.data.training.dataset import Dataset, TrainingSample
from megatape.data.training.order import SampleLocation, SampleOrder, ShuffledOrder, WindowOrder
from megatape.data.training.schedule import Schedule, integer_weights, tempered_weights
from megatape.errors import UserError

T = TypeVar("T")


class Mixture:
    """The training splits of a run. Each corpus keeps the order that it would have alone.

    Args:
        data: Section `data` of the configuration.
        corpora: Training split of each corpus of `data.corpora`, by name.
        seed: Seed of the order, and of everything that training draws for a sample.

    Attributes:
        corpora: Training splits by name, in alphabetical order: their order in the configuration means nothing.
        order: Order of the samples of all corpora.
        seed: Seed of the order, and of everything that training draws for a sample.
        sequence_length: Tokens of a sample.
        vocab_size: Number of token ids.
        tokenizer_hash: Sha256 of the tokenizer of every corpus.
        num_tokens: Number of tokens of all corpora.
        shares: Share of each corpus before any annealing, by name.
        unigram_entropy: Mean of the corpora's entropies, weighted by `shares`.
        filled: Mean of the corpora's filled parts, weighted by `shares`.
        fingerprint: Hash of all corpora and the first weights.

    Raises:
        UserError: The corpora have different tokenizers, or the weights have no schedule.
    """

    def __init__(self, data: DataConfig, corpora: Mapping[str, Dataset], seed: int) -> None:
        self.corpora = dict(sorted(corpora.items()))
        self._settings = {name: data.corpora[name] for name in self.corpora}
        self._check_tokenizers()
        first = next(iter(self.corpora.values()))
        self.seed = seed
        self.sequence_length = first.sequence_length
        self.vocab_size = first.vocab_size
        self.tokenizer_hash = first.tokenizer_hash
        self.num_tokens = sum(corpus.num_tokens for corpus in self.corpora.values())

        first_weights = self._first_weights(data.temperature)
        phases = [(0, first_weights)]
        for change in data.annealing:
            # A sample that begins before a change of the weights ends under the old ones.
            start = -(-change.tokens // self.sequence_length)
            phases.append((start, self._integers(change.weights)))
        orders = {name: _order(name, corpus, seed) for name, corpus in self.corpora.items()}
        self.order = MixtureOrder(Schedule(phases), orders)
        # Window of each corpus that was read last.
        self._windows: dict[str, int] = {}

        total_weight = sum(first_weights)
        self.shares = {name: weight / total_weight for name, weight in zip(self.corpora, first_weights, strict=True)}
        self.unigram_entropy = sum(self.shares[name] * corpus.unigram_entropy for name, corpus in self.corpora.items())
        # Summing up the padding makes corpora without any exactly full.
        padding = sum(self.shares[name] * (1 - corpus.filled) for name, corpus in self.corpora.items())
        self.filled = 1 - padding

        # Checkpoints of runs on data.path have the fingerprint of its content alone.
        self.fingerprint = first.fingerprint
        if data.mixture:
            identity = [[name, corpus.fingerprint] for name, corpus in self.corpora.items()]
            self.fingerprint = content_hash(identity, first_weights)

    def sample(self, consumed: int) -> TrainingSample:
        """Return the sample that training takes after `consumed` others."""
        location = self.order.locate(consumed)
        corpus = self.corpora[location.corpus]
        if self._windows.get(location.corpus) != location.window:
            self._windows[location.corpus] = location.window
            corpus.expect(self.order.upcoming_shards(location))
        return corpus.sample(location.sample_index)

    def check_epochs(self, steps: int, batches: BatchSizes) -> None:
        """Check that a run stays within each corpus's max_epochs.

        Args:
            steps: Number of steps of the run.
            batches: Batch sizes of the run.

        Raises:
            UserError: The run would exceed max_epochs of a corpus.
        """
        for name, used in self.order.counts(batches.consumed(steps)).items():
            max_epochs = self._settings[name].max_epochs
            available = self.corpora[name].num_samples
            if max_epochs is None or used <= max_epochs * available:
                continue

            def used_until(step: int, name: str = name) -> int:
                return self.order.counts(batches.consumed(step))[name]

            last_step = bisect_right(range(steps + 1), max_epochs * available, key=used_until)
            raise UserError(
                f"data.mixture.{name}: training.steps {steps} use {used:,} samples of it, {used / available:.2f} epochs of its "
                f"{available:,}, and max_epochs is {max_epochs}, which ends in step {last_step}: lower its weight or "
                "training.steps, raise max_epochs, or prepare more text"
            )

    def describe(self, samples: int) -> str:
        """Describe the named corpora in one line: their shares, and the epochs of a run of `samples` samples."""
        parts = []
        for name, used in without_unnamed(self.order.counts(samples)).items():
            corpus = self.corpora[name]
            epochs = used / corpus.num_samples
            parts.append(f"{name} {self.shares[name]:.4g} ({epochs:.2f} epochs of {corpus.num_tokens:,} tokens)")
        return ", ".join(parts)

    def _check_tokenizers(self) -> None:
        """Raise UserError unless all corpora have the tokenizer of the first one."""
        (first_name, first), *others = self.corpora.items()
        first_path = self._settings[first_name].path
        first_special = (first.bos_id, first.eos_id)
        for name, corpus in others:
            special = (corpus.bos_id, corpus.eos_id)
            if corpus.tokenizer_hash == first.tokenizer_hash and special == first_special:
                continue
            raise UserError(
                f"data.mixture: {first_name} ({first_path}) and {name} ({self._settings[name].path}) have different tokenizers "
                f"(sha256 {first.tokenizer_hash[:12]} and {corpus.tokenizer_hash[:12]}, bos_id and eos_id {first_special} and "
                f"{special}): prepare one of them with --tokenizer of the other"
            )

    def _first_weights(self, temperature: float) -> list[int]:
        """Return the weights before any annealing: those of the configuration, or else by the sizes of the corpora."""
        weights = {}
        for name, settings in self._settings.items():
            if settings.weight is not None:
                weights[name] = settings.weight
        if weights:
            return self._integers(weights)
        sizes = [corpus.num_tokens for corpus in self.corpora.values()]
        return tempered_weights(sizes, temperature)

    def _integers(self, weights: Mapping[str, float]) -> list[int]:
        return integer_weights([weights[name] for name in self.corpora])


def without_unnamed(values: Mapping[str, T]) -> dict[str, T]:
    """Return the values of named corpora. `data.path` has no name and is all of the data, so reports do not list it."""
    return {name: value for name, value in values.items() if name}


def _order(name: str, corpus: Dataset, seed: int) -> SampleOrder:
    """Return the order of a corpus alone."""
    if corpus.window:
        return WindowOrder(name, corpus.shard_samples, corpus.window, seed)
    return ShuffledOrder(name, corpus.num_samples, seed)


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
        corpus, earlier = self._schedule.turn(consumed)
        return self._by_number[corpus].locate(earlier)

    def upcoming_shards(self, location: SampleLocation) -> list[int]:
        return self._orders[location.corpus].upcoming_shards(location)

    def counts(self, samples: int) -> dict[str, int]:
        """Return the number of samples of each corpus among the first `samples`."""
        return dict(zip(self._orders, self._schedule.counts(samples), strict=True))

"""The data of a run: both splits of each corpus, checked against the configuration.

The training splits are mixed in exact shares: a schedule chooses the corpus, whose own order has the next sample. A single
corpus is a mixture of one.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from megatape.config import Config
from megatape.config.data import DataConfig
from megatape.config.training import BatchSizes
from megatape.data.shards.cache import CacheFolder
from megatape.data.shards.hashes import content_hash
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.best_fit_dataset import BestFitDataset
from megatape.data.training.dataset import Dataset, TokenDataset, TrainingSample
from megatape.data.training.document_dataset import DocumentDataset
from megatape.data.training.example_dataset import ExampleDataset
from megatape.data.training.inputs import group_by_input
from megatape.data.training.order import SampleLocation, SampleOrder, ShuffledOrder, WindowOrder
from megatape.data.training.schedule import Schedule, integer_weights, tempered_weights
from megatape.data.training.selection import SELECTIONS, SampleGroups, Selection, select_samples
from megatape.errors import UserError, path_errors

T = TypeVar("T")


@dataclass(frozen=True)
class RunData:
    """Both splits of a run.

    Attributes:
        train: All training splits, and their order.
        validation: Validation splits by corpus, in the order of `train.corpora`.
        evaluated: Evaluation samples by corpus and input, for each selection.
        tokenizer: Tokenizer in memory, so changes of its files during the run do not reach the checkpoints.
    """

    train: "Mixture"
    validation: dict[str, Dataset]
    evaluated: dict[Selection, dict[str, SampleGroups]]
    tokenizer: Tokenizer

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes for checkpoints: a run resumes only on the same training data."""
        return {"data": self.train.fingerprint, "tokenizer": self.train.tokenizer_hash}


@path_errors()
def open_data(config: Config) -> RunData:
    """Open the data of a run. Raises UserError or FileNotFoundError if it does not fit the configuration."""
    data = config.data
    training = config.training
    corpora = {name: open_split(data, corpus.path, "train") for name, corpus in data.corpora.items()}
    for name, corpus in corpora.items():
        _check_corpus(config, data.corpora[name].path, corpus)
    first, *others = corpora.values()
    for corpus in others:
        # Opening a tokenizer checks its ids. Equal entries have the ids of the first tokenizer, which is opened below.
        if corpus.tokenizer_entry != first.tokenizer_entry:
            corpus.tokenizer()
    mixture = Mixture(data, corpora, training.seed)
    mixture.check_epochs(training.steps, config.batches)
    validation = {name: open_split(data, data.corpora[name].path, "validation") for name in mixture.corpora}
    evaluated = {selection: _evaluated_samples(config, validation, selection) for selection in SELECTIONS}
    return RunData(mixture, validation, evaluated, first.tokenizer())


def _evaluated_samples(config: Config, validation: Mapping[str, Dataset], selection: Selection) -> dict[str, SampleGroups]:
    """Select the evaluation samples of each validation split, by corpus and input.

    With the selection `first` there are no losses by input, because most of these samples belong to one input.
    """
    selected: dict[str, SampleGroups] = {}
    for name, split in validation.items():
        samples = select_samples(split.num_samples, config.evaluation.samples, selection)
        selected[name] = {"": samples}
        if selection == "spread":
            selected[name] = group_by_input(split, samples)
    return selected


def open_split(data: DataConfig, path: str, split: str) -> Dataset:
    """Open a split of a corpus, cut into samples as configured. Only training reads in windows."""
    cache = None
    if data.cache:
        cache = CacheFolder(Path(data.cache), data.cache_bytes)
    length = data.sequence_length
    window = 0
    if split == "train":
        window = data.window
    match data.samples:
        case "packed":
            return TokenDataset(path, split, length, data.mask_documents, cache, window)
        case "best_fit":
            return BestFitDataset(path, split, length, cache, window)
        case "documents":
            return DocumentDataset(path, split, length, data.prompt_end, cache, data.missing_prompt_end == "skip")
        case "examples":
            return ExampleDataset(path, split, length, data.mask_documents, cache)


def _check_corpus(config: Config, path: str, corpus: Dataset) -> None:
    """Raise UserError if a training split does not fit the configuration."""
    samples = config.data.samples
    vocab_size = config.model.vocab_size
    if corpus.answers and samples != "examples":
        raise UserError(
            f"data {path} holds prompts and answers, but data.samples is {samples}, which would learn the prompts too: set it "
            "to examples, or use other data"
        )
    if corpus.vocab_size > vocab_size:
        raise UserError(
            f"the tokenizer of data {path} has {corpus.vocab_size} ids, but model.vocab_size is {vocab_size}: raise "
            "model.vocab_size, or use data with another tokenizer"
        )


class Mixture:
    """The training splits of a run. A corpus has the same order as it would have alone.

    Args:
        data: Section `data` of the configuration.
        corpora: Training split of each corpus of `data.corpora`, by name.
        seed: Seed of the order, and of random choices of training for each sample.

    Attributes:
        corpora: Corpora by name, in alphabetical order. The order in the file has no effect.
        order: Order of the samples.
        seed: Seed of the order.
        sequence_length: Length of the samples of every corpus.
        vocab_size: Vocabulary size of every corpus.
        tokenizer_hash: sha256 of the tokenizer of every corpus.
        num_tokens: Number of tokens of all corpora.
        shares: Shares of the corpora before any annealing.
        unigram_entropy: Mean of the corpora's, weighted by these shares.
        filled: Mean of the corpora's, weighted by these shares.
        fingerprint: Hash of all corpora and the first weights.

    Raises:
        UserError: The corpora have different tokenizers, or the weights have no schedule.
    """

    def __init__(self, data: DataConfig, corpora: Mapping[str, Dataset], seed: int) -> None:
        self.corpora = dict(sorted(corpora.items()))
        self._settings = {name: data.corpora[name] for name in self.corpora}
        (first, one), *others = self.corpora.items()
        for name, corpus in others:
            special = [(each.bos_id, each.eos_id) for each in (one, corpus)]
            if corpus.tokenizer_hash != one.tokenizer_hash or special[0] != special[1]:
                raise UserError(
                    f"data.mixture: {first} ({self._settings[first].path}) and {name} ({self._settings[name].path}) have "
                    f"different tokenizers (sha256 {one.tokenizer_hash[:12]} and {corpus.tokenizer_hash[:12]}, bos_id and "
                    f"eos_id {special[0]} and {special[1]}): prepare one of them with --tokenizer of the other"
                )
        self.seed = seed
        self.sequence_length = one.sequence_length
        self.vocab_size = one.vocab_size
        self.tokenizer_hash = one.tokenizer_hash
        self.num_tokens = sum(corpus.num_tokens for corpus in self.corpora.values())

        # A sample that begins before a change of the weights ends under the old ones.
        starts = [0, *(-(-change.tokens // self.sequence_length) for change in data.annealing)]
        weights = [self._first_weights(data.temperature), *(self._whole(change.weights) for change in data.annealing)]
        orders = {name: _order(name, corpus, seed) for name, corpus in self.corpora.items()}
        self.order = MixtureOrder(Schedule(list(zip(starts, weights, strict=True))), orders)
        # Window of each corpus that was read last.
        self._windows: dict[str, int] = {}

        self.shares = {name: weight / sum(weights[0]) for name, weight in zip(self.corpora, weights[0], strict=True)}
        self.unigram_entropy = sum(self.shares[name] * corpus.unigram_entropy for name, corpus in self.corpora.items())
        # Averaging the padding keeps the mean of completely filled corpora exactly 1.
        self.filled = 1 - sum(self.shares[name] * (1 - corpus.filled) for name, corpus in self.corpora.items())
        identity = [[name, corpus.fingerprint] for name, corpus in self.corpora.items()]
        # Checkpoints of runs on data.path have the fingerprint of its content alone.
        self.fingerprint = one.fingerprint
        if data.mixture:
            self.fingerprint = content_hash(identity, weights[0])

    def sample(self, consumed: int) -> TrainingSample:
        """Return the sample of training after `consumed` others."""
        location = self.order.locate(consumed)
        corpus = self.corpora[location.corpus]
        if self._windows.get(location.corpus) != location.window:
            self._windows[location.corpus] = location.window
            corpus.expect(self.order.upcoming_shards(location))
        return corpus.sample(location.sample_index)

    def check_epochs(self, steps: int, batches: BatchSizes) -> None:
        """Raise UserError if a run of `steps` steps would exceed a corpus's max_epochs."""
        for name, used in self.order.counts(batches.consumed(steps)).items():
            max_epochs = self._settings[name].max_epochs
            available = self.corpora[name].num_samples
            if max_epochs is not None and used > max_epochs * available:
                step = bisect_right(
                    range(steps + 1), max_epochs * available, key=lambda step: self.order.counts(batches.consumed(step))[name]
                )
                raise UserError(
                    f"data.mixture.{name}: training.steps {steps} use {used:,} samples of it, {used / available:.2f} epochs of "
                    f"its {available:,}, and max_epochs is {max_epochs}, which ends in step {step}: lower its weight or "
                    "training.steps, raise max_epochs, or prepare more text"
                )

    def describe(self, samples: int) -> str:
        """Describe the shares of named corpora, and their epochs in a run of `samples` samples, in one line."""
        parts = []
        for name, used in named(self.order.counts(samples)).items():
            corpus = self.corpora[name]
            epochs = used / corpus.num_samples
            parts.append(f"{name} {self.shares[name]:.4g} ({epochs:.2f} epochs of {corpus.num_tokens:,} tokens)")
        return ", ".join(parts)

    def _first_weights(self, temperature: float) -> list[int]:
        given = {name: settings.weight for name, settings in self._settings.items()}
        weights = {name: weight for name, weight in given.items() if weight is not None}
        if weights:
            return self._whole(weights)
        return tempered_weights([corpus.num_tokens for corpus in self.corpora.values()], temperature)

    def _whole(self, weights: Mapping[str, float]) -> list[int]:
        return integer_weights([weights[name] for name in self.corpora])


def named(values: Mapping[str, T]) -> dict[str, T]:
    """Return the values of named corpora, for reports. The corpus of data.path has no name and is all of the data."""
    return {name: value for name, value in values.items() if name}


def _order(name: str, corpus: Dataset, seed: int) -> SampleOrder:
    """Return the order of a single corpus."""
    if corpus.window:
        return WindowOrder(name, corpus.shard_samples, corpus.window, seed)
    return ShuffledOrder(name, corpus.num_samples, seed)


class MixtureOrder(SampleOrder):
    """Interleaved orders of all corpora. A single corpus has its own order.

    Args:
        schedule: Schedule of the corpora, by number.
        orders: Order of each corpus, by name, in the order of the numbers.
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

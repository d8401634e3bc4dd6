"""The data of a run: both splits of each corpus, checked against the configuration.

The training splits are mixed in exact shares: whose turn it is, and the next sample in that corpus's own order. A single corpus
is a mixture of one.
"""

import heapq
import itertools
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from pathlib import Path
from typing import TypeVar

import numpy as np

from megatape.config import Config
from megatape.config.data import DataConfig
from megatape.config.training import BatchSizes
from megatape.data.shards.cache import CacheFolder
from megatape.data.shards.hashes import content_hash
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.dataset import Dataset, TokenDataset, TrainingSample
from megatape.data.training.inputs import group_by_input
from megatape.data.training.order import SampleLocation, SampleOrder, ShuffledOrder, WindowOrder
from megatape.data.training.packing import BestFitDataset, DocumentDataset, ExampleDataset
from megatape.data.training.selection import SELECTIONS, SampleGroups, Selection, select_samples
from megatape.errors import UserError, path_errors

T = TypeVar("T")
MAX_CYCLE = 100_000  # samples after which a schedule repeats: a table of that many, made at the start of a run
TEMPERED_CYCLE = 10_000  # that of shares that follow from sizes


@dataclass(frozen=True)
class RunData:
    """Both splits of a run.

    Attributes:
        train: All corpora, and their order.
        validation: Validation splits by corpus, in the order of `train.corpora`.
        evaluated: Evaluation samples by corpus and input, for each selection.
        tokenizer: In memory: changes of its files during the run do not reach the checkpoints.
    """

    train: "Mixture"
    validation: dict[str, Dataset]
    evaluated: dict[Selection, dict[str, SampleGroups]]
    tokenizer: Tokenizer

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes that a checkpoint records, since a run resumes only on the same training data."""
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
        if corpus.tokenizer_entry != first.tokenizer_entry:  # else its ids are those that are compared with the first one's
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
    cache = CacheFolder(Path(data.cache), data.cache_bytes) if data.cache else None
    length = data.sequence_length
    window = data.window if split == "train" else 0
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
    """The training splits of a run. A corpus has the order that it would have alone.

    Args:
        data: The section of the configuration.
        corpora: Training split of each corpus of `data.corpora`, by name.
        seed: Of the order, and of what training draws for each sample.

    Attributes:
        corpora: By name, in alphabetical order: the order in the file means nothing.
        order: Which sample comes after how many others.
        seed, sequence_length, vocab_size, tokenizer_hash: Of every corpus.
        num_tokens: Of all corpora.
        shares: Of the corpora before any annealing.
        unigram_entropy, filled: Means of the corpora's by these shares.
        fingerprint: Of all corpora and the first weights.

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
        self._windows: dict[str, int] = {}  # window of each corpus that was read last

        self.shares = {name: weight / sum(weights[0]) for name, weight in zip(self.corpora, weights[0], strict=True)}
        self.unigram_entropy = sum(self.shares[name] * corpus.unigram_entropy for name, corpus in self.corpora.items())
        # By the padding, so that corpora without any are exactly full.
        self.filled = 1 - sum(self.shares[name] * (1 - corpus.filled) for name, corpus in self.corpora.items())
        identity = [[name, corpus.fingerprint] for name, corpus in self.corpora.items()]
        # Checkpoints of runs on data.path have the fingerprint of its content alone.
        self.fingerprint = content_hash(identity, weights[0]) if data.mixture else one.fingerprint

    def sample(self, consumed: int) -> TrainingSample:
        """The sample that training takes after `consumed` others."""
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
        """Shares of named corpora, and the epochs of a run of `samples` samples, in one line."""
        return ", ".join(
            f"{name} {self.shares[name]:.4g} ({used / self.corpora[name].num_samples:.2f} epochs of "
            f"{self.corpora[name].num_tokens:,} tokens)"
            for name, used in named(self.order.counts(samples)).items()
        )

    def _first_weights(self, temperature: float) -> list[int]:
        given = {name: settings.weight for name, settings in self._settings.items()}
        if weights := {name: weight for name, weight in given.items() if weight is not None}:
            return self._whole(weights)
        return tempered_weights([corpus.num_tokens for corpus in self.corpora.values()], temperature)

    def _whole(self, weights: Mapping[str, float]) -> list[int]:
        return whole_weights([weights[name] for name in self.corpora])


def named(values: Mapping[str, T]) -> dict[str, T]:
    """Values by corpus as reports have them: without that of data.path, which has no name and is all of the data."""
    return {name: value for name, value in values.items() if name}


def _order(name: str, corpus: Dataset, seed: int) -> SampleOrder:
    """The order of a corpus alone."""
    if corpus.window:
        return WindowOrder(name, corpus.shard_samples, corpus.window, seed)
    return ShuffledOrder(name, corpus.num_samples, seed)


class MixtureOrder(SampleOrder):
    """The orders of all corpora, taken in turn: of one corpus, its own order.

    Args:
        schedule: Which corpus is next, by number.
        orders: Order of each corpus, by name, in the order of the numbers.
    """

    def __init__(self, schedule: "Schedule", orders: Mapping[str, SampleOrder]) -> None:
        self._schedule = schedule
        self._orders = orders
        self._by_number = list(orders.values())

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
        return (self._before[phase] + self._cycles[phase].counts(samples - self._starts[phase])).tolist()

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

"""The training samples of several corpora, mixed in exact shares."""

import hashlib
import json
from bisect import bisect_right

from megatape.config.data import DataConfig
from megatape.data.training.dataset import Dataset, Sample
from megatape.data.training.schedule import Schedule, tempered_weights, whole_weights
from megatape.errors import UserError


class Mixture:
    """The training splits of data.mixture, by name. A corpus has the order that it would have alone.

    Attributes: sequence_length, vocab_size, tokenizer_hash as of every corpus; num_tokens of all; shares of the corpora before
    any annealing; unigram_entropy, the mean of the corpora's by these shares; fingerprint of all corpora and the first weights.
    Raises UserError if the corpora have different tokenizers, or for weights without a schedule.
    """

    def __init__(self, data: DataConfig, corpora: dict[str, Dataset]) -> None:
        self._data = data
        self._corpora = dict(sorted(corpora.items()))  # the order in the file means nothing
        self._datasets = list(self._corpora.values())
        (first, one), *others = self._corpora.items()
        for name, corpus in others:
            if corpus.tokenizer_hash != one.tokenizer_hash:
                raise UserError(
                    f"data.mixture: {first} ({data.mixture[first].path}) and {name} ({data.mixture[name].path}) have different "
                    f"tokenizers (sha256 {one.tokenizer_hash[:12]} and {corpus.tokenizer_hash[:12]}): prepare one of them with "
                    "--tokenizer of the other"
                )
        self.sequence_length, self.vocab_size, self.tokenizer_hash = one.sequence_length, one.vocab_size, one.tokenizer_hash
        self.num_tokens = sum(corpus.num_tokens for corpus in self._corpora.values())
        # A sample that begins before a change of the weights ends under the old ones.
        starts = [0, *(-(-change.tokens // self.sequence_length) for change in data.annealing)]
        weights = [self._first_weights(), *(self._whole(change.weights) for change in data.annealing)]
        self._schedule = Schedule(list(zip(starts, weights, strict=True)))
        self.shares = {name: weight / sum(weights[0]) for name, weight in zip(self._corpora, weights[0], strict=True)}
        self.unigram_entropy = sum(self.shares[name] * corpus.unigram_entropy for name, corpus in self._corpora.items())
        identity = [[name, corpus.fingerprint] for name, corpus in self._corpora.items()]
        self.fingerprint = hashlib.sha256(json.dumps([identity, weights[0]]).encode()).hexdigest()

    def located(self, place: int, seed: int) -> tuple[str, int]:
        """The corpus and the index in it of the sample that training takes after `place` others of all corpora."""
        corpus, earlier = self._schedule.locate(place)
        return list(self._corpora)[corpus], self._datasets[corpus].located(earlier, seed)[1]

    @property
    def sizes(self) -> dict[str, int]:
        """The samples of each corpus."""
        return {name: corpus.num_samples for name, corpus in self._corpora.items()}

    def training_sample(self, place: int, seed: int) -> Sample:
        """The sample that training takes after `place` others of all corpora."""
        corpus, earlier = self._schedule.locate(place)
        return self._datasets[corpus].training_sample(earlier, seed)

    def counts(self, samples: int) -> dict[str, int]:
        """How many of the first `samples` samples of a run come from each corpus."""
        return dict(zip(self._corpora, self._schedule.counts(samples), strict=True))

    def check_epochs(self, steps: int, step_samples: int) -> None:
        """Raise UserError if a run of so many steps, of so many samples each, would use a corpus beyond its max_epochs."""
        for name, used in self.counts(steps * step_samples).items():
            max_epochs, available = self._data.mixture[name].max_epochs, self._corpora[name].num_samples
            if max_epochs is not None and used > max_epochs * available:
                enough = range(steps + 1)
                step = bisect_right(enough, max_epochs * available, key=lambda step: self.counts(step * step_samples)[name])
                raise UserError(
                    f"data.mixture.{name}: training.steps {steps} use {used:,} samples of it, {used / available:.2f} epochs of "
                    f"its {available:,}, and max_epochs is {max_epochs}, which ends in step {step}: lower its weight or "
                    "training.steps, raise max_epochs, or prepare more text"
                )

    def describe(self, samples: int) -> str:
        """Shares, and what a run of `samples` samples uses, in one line."""
        parts = [
            f"{name} {self.shares[name]:.4g} ({used / self._corpora[name].num_samples:.2f} epochs of "
            f"{self._corpora[name].num_tokens:,} tokens)"
            for name, used in self.counts(samples).items()
        ]
        return ", ".join(parts)

    def _first_weights(self) -> list[int]:
        given = {name: self._data.mixture[name].weight for name in self._corpora}
        weights = {name: weight for name, weight in given.items() if weight is not None}
        if weights:
            return self._whole(weights)
        return tempered_weights([corpus.num_tokens for corpus in self._datasets], self._data.temperature)

    def _whole(self, weights: dict[str, float]) -> list[int]:
        return whole_weights([weights[name] for name in self._corpora])

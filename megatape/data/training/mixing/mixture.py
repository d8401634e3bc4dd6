"""Mixes training datasets in exact shares. A single corpus is a mixture of one."""

from collections.abc import Mapping, Sequence

from megatape.config.sections.data import CorpusConfig, DataConfig
from megatape.data.shards.hashes import content_hash
from megatape.data.training.datasets.dataset import Dataset, SampleRows, TrainingSample
from megatape.data.training.mixing.corpus_names import without_unnamed
from megatape.data.training.mixing.mixture_order import MixtureOrder, corpus_order
from megatape.data.training.mixing.mixture_weights import annealing_phases, first_weights
from megatape.data.training.mixing.schedule import Phase, Schedule
from megatape.errors import UserError


class Mixture:
    """Training datasets of a run, mixed. Each corpus keeps the sample order that it would have alone.

    Args:
        data: Configuration section `data`.
        corpora: Each corpus's training dataset, by name.
        seed: Seed for the order, and for everything that training draws per sample.

    Attributes:
        corpora: Training datasets by name. Sorting makes their order in the configuration irrelevant.
        order: Sample order over all corpora.
        seed: Seed for the order, and for everything that training draws per sample.
        sequence_length: Tokens per sample.
        vocab_size: Number of token ids.
        tokenizer_hash: sha256 of the tokenizer, the same for all corpora.
        num_tokens: Tokens in all corpora.
        shares: Each corpus's share before any annealing, by name.
        unigram_entropy: Entropy of the corpora in nats, averaged by `shares`.
        filled: Share of tokens that are not padding, averaged by `shares`.
        fingerprint: Hash of all corpora and the first weights.

    Raises:
        UserError: The corpora have different tokenizers, or the weights have no schedule.
    """

    def __init__(self, data: DataConfig, corpora: Mapping[str, Dataset], seed: int) -> None:
        self.corpora = dict(sorted(corpora.items()))
        _check_tokenizers(self.corpora, data.corpora)
        first = next(iter(self.corpora.values()))
        self.seed = seed
        self.sequence_length = first.sequence_length
        self.vocab_size = first.split.vocab_size
        self.tokenizer_hash = first.split.tokenizer_hash
        corpus_tokens = {name: corpus.split.num_tokens for name, corpus in self.corpora.items()}
        self.num_tokens = sum(corpus_tokens.values())

        weights = first_weights(data, corpus_tokens)
        phases = [Phase(0, weights), *annealing_phases(data, list(self.corpora), self.sequence_length)]
        orders = {name: corpus_order(name, corpus, seed) for name, corpus in self.corpora.items()}
        self.order = MixtureOrder(Schedule(phases), orders)
        self._has_document_starts = first.has_document_starts
        # Last window read from each corpus.
        self._windows: dict[str, int] = {}

        total_weight = sum(weights)
        self.shares = {name: weight / total_weight for name, weight in zip(self.corpora, weights, strict=True)}
        self.unigram_entropy = sum(self.shares[name] * corpus.unigram_entropy for name, corpus in self.corpora.items())
        # Averaging the padding gives exactly 1 for corpora without any.
        padding = sum(self.shares[name] * (1 - corpus.filled) for name, corpus in self.corpora.items())
        self.filled = 1 - padding

        # Checkpoints from runs on data.path record its fingerprint alone.
        self.fingerprint = first.fingerprint
        if data.mixture:
            identity = [[name, corpus.fingerprint] for name, corpus in self.corpora.items()]
            self.fingerprint = content_hash(identity, weights)

    def samples(self, consumed: Sequence[int]) -> SampleRows:
        """Return samples, one a row, given how many others precede each."""
        rows = SampleRows.empty(len(consumed), self.sequence_length, self._has_document_starts)
        for number, num_before in enumerate(consumed):
            self._fill(num_before, rows.row(number))
        return rows

    def sample(self, consumed: int) -> TrainingSample:
        """Return the sample after `consumed` others."""
        return self.samples([consumed]).row(0)

    def _fill(self, consumed: int, sample: TrainingSample) -> None:
        """Write the sample after `consumed` others into arrays."""
        location = self.order.locate(consumed)
        corpus = self.corpora[location.corpus]
        if self._windows.get(location.corpus) != location.window:
            self._windows[location.corpus] = location.window
            corpus.split.expect(self.order.upcoming_shards(location))
        corpus.fill(location.sample_index, sample)

    def describe(self, samples: int) -> str:
        """Describe the named corpora in one line: their shares, and their epochs in a run of `samples` samples."""
        parts = []
        for name, used in without_unnamed(self.order.counts(samples)).items():
            corpus = self.corpora[name]
            epochs = used / corpus.num_samples
            parts.append(f"{name} {self.shares[name]:.4g} ({epochs:.2f} epochs of {corpus.split.num_tokens:,} tokens)")
        return ", ".join(parts)


def _check_tokenizers(corpora: Mapping[str, Dataset], settings: Mapping[str, CorpusConfig]) -> None:
    """Raise UserError unless all corpora have the same tokenizer."""
    (first_name, first_corpus), *others = corpora.items()
    first = first_corpus.split
    first_path = settings[first_name].path
    first_special = (first.bos_id, first.eos_id)
    for name, corpus in others:
        split = corpus.split
        path = settings[name].path
        special = (split.bos_id, split.eos_id)
        if split.tokenizer_hash == first.tokenizer_hash and special == first_special:
            continue
        raise UserError(
            f"data.mixture: {first_name} ({first_path}) and {name} ({path}) have different tokenizers (sha256 "
            f"{first.tokenizer_hash[:12]} and {split.tokenizer_hash[:12]}, bos_id and eos_id {first_special} and {special}): "
            "prepare one of them with the tokenizer of the other"
        )

"""The data of a run: both splits of each corpus, checked against the configuration."""

from dataclasses import dataclass
from pathlib import Path

from megatape.config import Config
from megatape.config.data import DataConfig
from megatape.data.shards.cache import CacheFolder
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.best_fit_dataset import BestFitDataset
from megatape.data.training.dataset import Dataset, DocumentDataset, TokenDataset
from megatape.data.training.example_dataset import ExampleDataset
from megatape.data.training.mixture import Mixture
from megatape.errors import UserError, path_errors


@dataclass(frozen=True)
class RunData:
    """Both splits of a run. validation: by corpus of data.mixture; by "" without one."""

    train: Dataset | Mixture
    validation: dict[str, Dataset]
    tokenizer: Tokenizer  # in memory: what becomes of its files during the run does not reach the checkpoints

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes that a checkpoint records, since a run resumes only on the same training data."""
        return {"data": self.train.fingerprint, "tokenizer": self.train.tokenizer_hash}

    @property
    def shares(self) -> dict[str, float]:
        """How much the loss on each part of `validation` counts in that of all."""
        return self.train.shares if isinstance(self.train, Mixture) else {"": 1.0}

    @property
    def num_validation_tokens(self) -> int:
        """Of all corpora."""
        return sum(split.num_tokens for split in self.validation.values())

    def counts(self, samples: int) -> dict[str, int]:
        """How many of the first `samples` samples of the run come from each corpus of a mixture; empty without one."""
        return self.train.counts(samples) if isinstance(self.train, Mixture) else {}


@path_errors()
def open_data(config: Config) -> RunData:
    """Open the data of a run. Raises UserError or FileNotFoundError if it does not fit the configuration."""
    data, training = config.data, config.training
    if not data.mixture:
        train = _open_training(config, "data.path", data.path)
        return RunData(train, {"": _open_split(data, data.path, "validation")}, train.tokenizer())
    corpora = {name: _open_training(config, f"data.mixture.{name}.path", corpus.path) for name, corpus in data.mixture.items()}
    mixture = Mixture(data, corpora)
    mixture.check_epochs(training.steps, training.global_batch_size)
    validation = {name: _open_split(data, data.mixture[name].path, "validation") for name in mixture.shares}
    first, *others = corpora.values()
    for corpus in others:
        if corpus.tokenizer_entry != first.tokenizer_entry:  # else its ids are those that are compared with the first one's
            corpus.tokenizer()
    return RunData(mixture, validation, first.tokenizer())


def _open_training(config: Config, field: str, path: str) -> Dataset:
    """The training split of a data directory. field: which names it in the configuration."""
    vocab_size = config.model.vocab_size
    train = _open_split(config.data, path, "train")
    if train.answers and config.data.samples != "examples":
        raise UserError(
            f"{field} {path} holds prompts and answers, but data.samples is {config.data.samples}, which would learn the "
            "prompts too: set it to examples, or use other data"
        )
    if train.vocab_size > vocab_size:
        raise UserError(
            f"the tokenizer of {field} {path} has {train.vocab_size} ids, but model.vocab_size is {vocab_size}: raise "
            "model.vocab_size, or use data with another tokenizer"
        )
    return train


def _open_split(data: DataConfig, path: str, name: str) -> Dataset:
    cache = CacheFolder(Path(data.cache), data.cache_bytes) if data.cache else None
    if data.samples == "examples":
        return ExampleDataset(path, name, data.sequence_length, data.mask_documents, cache)
    window = data.window if name == "train" else 0
    if data.samples == "best_fit":
        return BestFitDataset(path, name, data.sequence_length, cache, window)
    if data.samples == "documents":
        return DocumentDataset(path, name, data.sequence_length, data.prompt_end, cache)
    return TokenDataset(path, name, data.sequence_length, data.mask_documents, cache, window)

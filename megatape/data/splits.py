"""The data of a run: both splits of data.path, checked against the configuration."""

from dataclasses import dataclass
from pathlib import Path

from megatape.config import Config
from megatape.data.dataset import Dataset, DocumentDataset, TokenDataset
from megatape.data.example_dataset import ExampleDataset
from megatape.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class RunData:
    """Both splits of a run."""

    train: Dataset
    validation: Dataset
    tokenizer: Tokenizer  # in memory: what becomes of its files during the run does not reach the checkpoints

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes that a checkpoint records, since a run resumes only on the same training data."""
        return {"data": self.train.fingerprint, "tokenizer": self.train.tokenizer_hash}


def open_data(config: Config) -> RunData:
    """Open the data at data.path. Raises ValueError or FileNotFoundError if it does not fit the configuration."""
    data, vocab_size = config.data, config.model.vocab_size
    cache = Path(data.cache) if data.cache else None

    def split(name: str) -> Dataset:
        if data.samples == "examples":
            return ExampleDataset(data.path, name, data.sequence_length, data.mask_documents, cache)
        if data.samples == "documents":
            return DocumentDataset(data.path, name, data.sequence_length, data.prompt_end, cache)
        return TokenDataset(data.path, name, data.sequence_length, data.mask_documents, cache)

    train = split("train")
    if train.answers and data.samples != "examples":
        raise ValueError(
            f"data.path {data.path} holds prompts and answers, but data.samples is {data.samples}, which would learn the "
            "prompts too: set it to examples, or use other data"
        )
    if train.vocab_size > vocab_size:
        raise ValueError(
            f"the tokenizer of data.path {data.path} has {train.vocab_size} ids, but model.vocab_size is {vocab_size}: raise "
            "model.vocab_size, or use data with another tokenizer"
        )
    return RunData(train, split("validation"), train.tokenizer())

"""The data of a run: both splits of data.path, checked against the configuration."""

from pathlib import Path

from megatape.config import Config
from megatape.data.dataset import Dataset, DocumentDataset, TokenDataset
from megatape.data.index import load_index
from megatape.data.tokenizer import Tokenizer


def open_data(config: Config) -> tuple[Dataset, Dataset]:
    """Training and validation split of data.path. Raises ValueError or FileNotFoundError if they do not fit the configuration."""
    data, vocab_size = config.data, config.model.vocab_size
    cache = Path(data.cache) if data.cache else None

    def split(name: str) -> Dataset:
        if data.samples == "documents":
            return DocumentDataset(data.path, name, data.sequence_length, data.prompt_end, cache)
        return TokenDataset(data.path, name, data.sequence_length, cache)

    train = split("train")
    if train.vocab_size > vocab_size:
        raise ValueError(
            f"the tokenizer of data.path {data.path} has {train.vocab_size} ids, model.vocab_size is {vocab_size}: raise "
            "model.vocab_size, or use shards of another tokenizer"
        )
    tokenizer = load_index(Path(data.path)).tokenizer
    Tokenizer.load(Path(data.path) / tokenizer.file, tokenizer.sha256)
    return train, split("validation")

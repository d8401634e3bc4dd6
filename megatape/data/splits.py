"""The data of a run: both splits of data.path, checked against the configuration."""

from pathlib import Path

from megatape.config import Config
from megatape.data.dataset import TokenDataset
from megatape.data.index import load_index
from megatape.data.tokenizer import Tokenizer


def open_data(config: Config) -> tuple[TokenDataset, TokenDataset]:
    """Training and validation split of data.path. Raises ValueError or FileNotFoundError if they do not fit the configuration."""
    length, vocab_size = config.data.sequence_length, config.model.vocab_size
    cache = Path(config.data.cache) if config.data.cache else None
    train = TokenDataset(config.data.path, "train", length, cache)
    if train.vocab_size > vocab_size:
        raise ValueError(
            f"the tokenizer of data.path {config.data.path} has {train.vocab_size} ids, model.vocab_size is {vocab_size}: raise "
            "model.vocab_size, or use shards of another tokenizer"
        )
    tokenizer = load_index(Path(config.data.path)).tokenizer
    Tokenizer.load(Path(config.data.path) / tokenizer.file, tokenizer.sha256)
    return train, TokenDataset(config.data.path, "validation", length, cache)

"""A small data directory, written token by token, and a small tokenizer."""

from pathlib import Path

import numpy as np
import pytest

from megatape.data.tokenizers.tokenizer import Tokenizer
from tests.helpers.data.data_directory import BOS, EOS, VOCAB_SIZE, Documents, MakeDirectory, small_tokenizer, write_ids


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


@pytest.fixture(scope="session")
def documents() -> Documents:
    """Return 200 documents with 2 to 41 ids, including control tokens."""
    generator = np.random.default_rng(0)
    return [np.r_[BOS, generator.integers(3, VOCAB_SIZE, length % 40), EOS] for length in range(200)]


@pytest.fixture
def make_directory(tmp_path: Path) -> MakeDirectory:
    """make_directory(documents, ...) writes a data directory by `write_ids`."""

    def make(documents: Documents, vocab_size: int = VOCAB_SIZE, name: str = "data") -> Path:
        return write_ids(tmp_path / name, documents, vocab_size)

    return make


@pytest.fixture
def directory(make_directory: MakeDirectory, documents: Documents) -> Path:
    """Return a data directory holding `documents`."""
    return make_directory(documents)

"""A small data directory, written token by token, and a small tokenizer."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from megatape.data.shards.index import Index, TokenizerEntry, save_index, token_dtype
from megatape.data.shards.writer import SplitWriter
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer

VOCAB_SIZE, BOS, EOS = 100, 1, 2

Documents = list[np.ndarray]
MakeDirectory = Callable[..., Path]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    text = "The quick brown fox jumps over the lazy dog, and then\n    the dog jumps\n    over the fox 12345 times.\n" * 3
    return SentencePieceTokenizer(train_tokenizer([text], 320))


@pytest.fixture(scope="session")
def documents() -> Documents:
    """200 documents of 2 to 41 ids, including control tokens."""
    generator = np.random.default_rng(0)
    return [np.r_[BOS, generator.integers(3, VOCAB_SIZE, length % 40), EOS] for length in range(200)]


@pytest.fixture
def make_directory(tmp_path: Path) -> MakeDirectory:
    """make_directory(documents, ...) writes a data directory with members of 64 tokens, three per shard, in both splits."""

    def make(documents: Documents, vocab_size: int = VOCAB_SIZE, name: str = "data") -> Path:
        directory = tmp_path / name
        directory.mkdir()
        splits = {}
        for split in ("train", "validation"):
            writer = SplitWriter(directory, split, vocab_size, EOS, member_tokens=64, members_per_shard=3)
            for ids in documents:
                writer.add(ids, text_bytes=3 * len(ids))
            splits[split] = writer.close()
        entry = TokenizerEntry("tokenizer.model", "0" * 64, vocab_size, BOS, EOS)
        save_index(Index(entry, token_dtype(vocab_size).name, {"kind": "test"}, 0.5, splits), directory)
        return directory

    return make

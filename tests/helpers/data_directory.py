"""Small data directories, written token by token or text by text, and what they hold."""

import hashlib
import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from megatape.data.shards.index import SPLITS, Index, TokenizerEntry, build_index, load_index, save_index, token_dtype
from megatape.data.shards.reader import SplitReader
from megatape.data.shards.writer import SplitWriter
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.dataset import TokenDataset

VOCAB_SIZE, BOS, EOS = 100, 1, 2

Documents = list[np.ndarray]
MakeDirectory = Callable[..., Path]


@cache
def small_tokenizer() -> Tokenizer:
    text = "The quick brown fox jumps over the lazy dog, and then\n    the dog jumps\n    over the fox 12345 times.\n" * 3
    return SentencePieceTokenizer(train_tokenizer([text], 320))


def write_ids(directory: Path, documents: Documents, vocab_size: int = VOCAB_SIZE) -> Path:
    """A data directory with members of 64 tokens, three per shard, the same documents in both splits."""
    directory.mkdir()
    splits = {}
    for split in SPLITS:
        writer = SplitWriter(directory, split, vocab_size, EOS, member_tokens=64, members_per_shard=3)
        for ids in documents:
            writer.add(ids, text_bytes=3 * len(ids))
        splits[split] = writer.close()
    entry = TokenizerEntry("tokenizer.model", "0" * 64, vocab_size, BOS, EOS)
    save_index(Index(entry, token_dtype(vocab_size).name, {"kind": "test"}, 0.5, splits), directory)
    return directory


def write_documents(directory: Path, texts: Iterable[str], tokenizer: Tokenizer) -> None:
    """A data directory of these texts, all in the training split."""
    writers = {split: SplitWriter(directory, split, tokenizer.vocab_size, tokenizer.eos_id) for split in SPLITS}
    for text in texts:
        writers["train"].add(tokenizer.encode_documents([text])[0], len(text.encode()))
    splits = {split: writer.close() for split, writer in writers.items()}
    build_index(directory, tokenizer, source={"kind": "test"}, validation_share=0.0, splits=splits)


def read_all(directory: Path, split: str = "train") -> np.ndarray:
    """All token ids of a split."""
    reader = SplitReader(directory, load_index(directory), split)
    return np.concatenate([reader.member(number) for number in range(len(reader))])


def texts_of(directory: Path, split: str) -> list[str]:
    """Documents of a split, decoded from its tokens."""
    tokens = load_index(directory).splits[split].tokens
    dataset = TokenDataset(directory, split, tokens - 1)
    tokenizer = dataset.tokenizer()
    ids = dataset.tokens(0)
    assert ids[0] == dataset.bos_id and ids[-1] == dataset.eos_id
    return [tokenizer.decode(document) for document in np.split(ids, np.flatnonzero(ids == dataset.eos_id) + 1)[:-1]]


def hashes_of(directory: Path) -> dict[str, str]:
    """Name -> hash of every file."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def edit_index(directory: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = directory / "index.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))

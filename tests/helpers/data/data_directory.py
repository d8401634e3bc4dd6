"""Small data directories, written token by token or text by text, and what they hold."""

import hashlib
import io
import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from megatape.data.shards.entries import SPLITS, Index, TokenizerEntry, token_dtype
from megatape.data.shards.index import build_index, load_index, save_index
from megatape.data.shards.layout import first_id
from megatape.data.shards.reader import SplitReader
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.shards.writer import SplitWriter
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.token_dataset import TokenDataset

VOCAB_SIZE = 100
BOS = 1
EOS = 2
# tokens of a member, members of a shard
MEMBER = 64
MEMBERS = 3

Documents = list[np.ndarray]
MakeDirectory = Callable[..., Path]


@cache
def small_tokenizer() -> Tokenizer:
    text = "The quick brown fox jumps over the lazy dog, and then\n    the dog jumps\n    over the fox 12345 times.\n" * 3
    return SentencePieceTokenizer(train_tokenizer([text], 320))


def write_ids(
    directory: Path, documents: Documents, vocab_size: int = VOCAB_SIZE, member_tokens: int = MEMBER, members: int = MEMBERS
) -> Path:
    """A data directory with members of 64 tokens, three per shard, the same documents in both splits."""
    directory.mkdir()
    splits = {}
    for split in SPLITS:
        writer = SplitWriter(directory, split, vocab_size, EOS, member_tokens=member_tokens, members_per_shard=members)
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
    return np.concatenate([*SplitReader(directory, load_index(directory), split).members()])


def member_of(reader: SplitReader, number: int, begin: int = 0, end: int = MEMBER) -> np.ndarray:
    """Token ids of a member that `write_ids` wrote."""
    shard, place = divmod(number, MEMBERS)
    return reader.read(shard, place * MEMBER + begin, place * MEMBER + end)


def first_byte(number: int) -> int:
    """Offset in its shard of the first token id of a member that `write_ids` wrote."""
    return first_id(number % MEMBERS, MEMBER, 2)


def make_earlier(directory: Path) -> None:
    """Give a data directory the index that version 1 of the format had."""

    def earlier(content: dict[str, Any]) -> None:
        content["version"] = 1
        for split in content["splits"].values():
            for shard in split["shards"]:
                stored = (directory / shard["file"]).read_bytes()
                size = shard["member_tokens"]
                members = []
                for number, begin in enumerate(range(0, shard["tokens"], size)):
                    tokens = min(size, shard["tokens"] - begin)
                    offset = first_id(number, size, 2) - 128
                    npy = stored[offset : offset + 128 + 2 * tokens]
                    counted = np.count_nonzero(np.load(io.BytesIO(npy)) == EOS)
                    entry = {"offset": offset, "bytes": len(npy), "tokens": tokens, "documents": int(counted)}
                    members.append({**entry, "sha256": hashlib.sha256(npy).hexdigest()})
                kept = {"file": shard["file"], "bytes": shard["bytes"], "members": members}
                shard.clear()
                shard.update(kept)

    edit_index(directory, earlier)


def flip(path: Path, place: int) -> None:
    """Change a byte of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 255
    path.write_bytes(content)


def texts_of(directory: Path, split: str) -> list[str]:
    """Documents of a split, decoded from its tokens."""
    tokens = load_index(directory).splits[split].tokens
    dataset = TokenDataset(StoredSplit(directory, split), tokens - 1)
    tokenizer = dataset.split.tokenizer()
    ids = dataset.tokens(0)
    assert ids[0] == dataset.split.bos_id and ids[-1] == dataset.split.eos_id
    return [tokenizer.decode(document) for document in np.split(ids, np.flatnonzero(ids == dataset.split.eos_id) + 1)[:-1]]


def hashes_of(directory: Path) -> dict[str, str]:
    """Name -> hash of every file."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def linked_snapshot(folder: Path) -> Path:
    """Copy a folder as a snapshot in the hub's cache, whose files are relative links to `blobs`."""
    root = folder.parent / f"hub-{folder.name}"
    snapshot = root / "snapshots" / "main"
    blobs = root / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(folder.iterdir())):
        (blobs / f"{number}").write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    return snapshot


def edit_index(directory: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = directory / "index.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))

"""Write small data directories, token by token or text by text, and read their contents."""

import hashlib
import io
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from megatape.data.shards.entries import SPLITS, Index, TokenizerEntry, token_dtype
from megatape.data.shards.index import build_index, load_index, save_index
from megatape.data.shards.layout import first_id
from megatape.data.shards.reading.reader import SplitReader
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.shards.writer import SplitWriter
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.datasets.token_dataset import TokenDataset
from tests.helpers.data.json_edits import edit_json

VOCAB_SIZE = 100
BOS = 1
EOS = 2
# Tokens per member, and members per shard, in directories written by `write_ids`
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
    """Write a data directory with the same documents in both splits, by default in shards of three 64-token members."""
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
    """Write a data directory with all texts in the training split."""
    writers = {split: SplitWriter(directory, split, tokenizer.vocab_size, tokenizer.eos_id) for split in SPLITS}
    for text in texts:
        writers["train"].add(tokenizer.encode_documents([text])[0], len(text.encode()))
    splits = {split: writer.close() for split, writer in writers.items()}
    build_index(directory, tokenizer, source={"kind": "test"}, validation_share=0.0, splits=splits)


def read_all(directory: Path, split: str = "train") -> np.ndarray:
    """Return all token ids in a split."""
    return np.concatenate([*SplitReader(directory, load_index(directory), split).members()])


def member_of(reader: SplitReader, number: int, begin: int = 0, end: int = MEMBER) -> np.ndarray:
    """Return the token ids in a member written by `write_ids`."""
    shard, place = divmod(number, MEMBERS)
    return reader.read(shard, place * MEMBER + begin, place * MEMBER + end)


def first_byte(number: int) -> int:
    """Return where a member's first token id starts in its shard, in a directory written by `write_ids`."""
    return first_id(number % MEMBERS, MEMBER, 2)


def make_earlier(directory: Path) -> None:
    """Replace a data directory's index by version 1, which lists each shard's members."""

    def replace_shards(content: dict[str, Any]) -> None:
        content["version"] = 1
        for split in content["splits"].values():
            split["shards"] = [_earlier_shard(directory, shard) for shard in split["shards"]]

    edit_index(directory, replace_shards)


def _earlier_shard(directory: Path, shard: dict[str, Any]) -> dict[str, Any]:
    """Return a shard's entry in an index of version 1."""
    content = (directory / shard["file"]).read_bytes()
    member_tokens = shard["member_tokens"]
    members = []
    for number, begin in enumerate(range(0, shard["tokens"], member_tokens)):
        num_tokens = min(member_tokens, shard["tokens"] - begin)
        offset = first_id(number, member_tokens, 2) - 128
        npy = content[offset : offset + 128 + 2 * num_tokens]
        num_documents = np.count_nonzero(np.load(io.BytesIO(npy)) == EOS)
        member = {
            "offset": offset,
            "bytes": len(npy),
            "tokens": num_tokens,
            "documents": int(num_documents),
            "sha256": hashlib.sha256(npy).hexdigest(),
        }
        members.append(member)
    return {"file": shard["file"], "bytes": shard["bytes"], "members": members}


def flip(path: Path, offset: int) -> None:
    """Invert all bits in one byte of a file."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 255
    path.write_bytes(content)


def texts_of(directory: Path, split: str) -> list[str]:
    """Return the documents in a split, decoding its tokens."""
    num_tokens = load_index(directory).splits[split].tokens
    dataset = TokenDataset(StoredSplit(directory, split), num_tokens - 1)
    tokenizer = dataset.split.tokenizer()
    ids = dataset.tokens(0)
    assert ids[0] == dataset.split.bos_id
    assert ids[-1] == dataset.split.eos_id
    ends = np.flatnonzero(ids == dataset.split.eos_id) + 1
    documents = np.split(ids, ends)[:-1]
    return [tokenizer.decode(document) for document in documents]


def hashes_of(directory: Path) -> dict[str, str]:
    """Return names of files -> SHA-256."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def linked_snapshot(folder: Path) -> Path:
    """Copy a folder like a snapshot in the hub's cache: its files are relative links to `blobs`."""
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
    """Edit a data directory's index in place."""
    edit_json(directory / "index.json", edit)

"""index.json, and every way it can be damaged."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from megatape.data.shards.index import load_index
from tests.helpers.data.data_directory import Documents, MakeDirectory, make_earlier
from tests.helpers.data.json_edits import REMOVED, set_file_entry

ANSWERS = {"file": "a.npy", "sha256": "", "examples": 1, "tokens": 1, "longest": 2, "unigram_entropy": 0.0}
ANSWERS_ELSEWHERE = ANSWERS | {"file": "/x"}


class Damage(NamedTuple):
    """A damaged entry of the index, and the message that refuses it."""

    entry: str
    value: Any
    message: str


DAMAGES = [
    Damage("version", 5, r"format and version are \('megatape-shards', 5\), .* \('megatape-shards', 4\)"),
    Damage("format", "other", r"format and version are \('other', 4\)"),
    Damage("tokenizer", REMOVED, "corrupted .*tokenizer"),
    Damage("tokenizer.companions", {"../x": ""}, "'../x': not a plain file name"),
    Damage(
        "tokenizer.companions",
        {"weight-00000.safetensors": ""},
        "weight-00000.safetensors.* is 'weight-00000.safetensors': not a file of a tokenizer, which are tokenizer.json",
    ),
    Damage("tokenizer.companions", {"state.json": ""}, "'state.json': not a file of a tokenizer"),
    Damage("tokenizer.companions", {"tokenizer.model": ""}, "tokenizer.model is both the tokenizer's file and a companion"),
    Damage("tokenizer.file", "index.json", "'index.json': not a file of a tokenizer"),
    Damage("tokenizer.file", "..", "'..': not a plain file name"),
    Damage("tokenizer.vocab_size", -1, "tokenizer.vocab_size: must be greater than or equal to 0"),
    Damage("splits.validation", REMOVED, "corrupted .*validation"),
    Damage("splits.train.tokens", 1, "tokens is 1, its shards hold"),
    Damage("splits.train.shards.1.file", "train-000000.tar", "train-000000.tar is listed as two files"),
    Damage("splits.train.shards.0.file", "../x.tar", "not a plain file name"),
    Damage("splits.train.shards.0.file", "..", "'..': not a plain file name"),
    Damage("splits.train.shards.0.bytes", 10**30, r"shards.0.bytes: must be less than or equal to"),
    Damage("splits.train.shards.0.tokens", 10**6, "train-000000.tar: its 1000000 tokens take .* bytes, it has"),
    Damage("splits.train.shards.0.member_tokens", 0, "member_tokens: must be greater than or equal to 1"),
    Damage("splits.train.shards.0.sha256", REMOVED, "corrupted .*sha256"),
    Damage("splits.train.shards.0.sha256", "x", "corrupted .*sha256: String should match"),
    Damage("answers", {"train": ANSWERS}, "answers has train, not every split"),
    Damage("answers", {"train": ANSWERS_ELSEWHERE, "validation": ANSWERS_ELSEWHERE}, "'/x': not a plain file name"),
    Damage("answers", "", "answers: must be an object"),
    Damage("dtype", "uint32", "dtype is uint32, vocab_size 100 needs uint16"),
]

DAMAGES_OF_AN_EARLIER_VERSION = [
    Damage("tokenizer", REMOVED, "corrupted"),
    Damage("splits", REMOVED, "corrupted"),
    Damage("splits.validation", REMOVED, "splits are train, not"),
    Damage("splits.train.text_bytes", REMOVED, "text_bytes: Field required"),
    Damage("splits.train.shards.0.members", [], "train.shards.0.tokens: must be greater than or equal to"),
    Damage("splits.train.shards.0.members.1.sha256", REMOVED, "shards.0.members.1.sha256: Field required"),
    Damage("splits.train.shards.0.members.1.offset", 10**9, "train-000000.tar member 1 does not fit its shard"),
    Damage("splits.train.shards.0.members.1", REMOVED, "train-000000.tar member 1 does not fit its shard"),
    Damage("splits.train.shards.0.members.2", REMOVED, "tokens is .*, its shards hold"),
]


def check_refused(directory: Path, message: str) -> None:
    with pytest.raises(ValueError, match=f"index.json: .*{message}"):
        load_index(directory)


def test_a_missing_index_names_the_command_that_writes_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="index.json: not found: .* make one with `megatape prepare corpus`"):
        load_index(tmp_path)


@pytest.mark.parametrize(("entry", "value", "message"), DAMAGES)
def test_a_damaged_index_is_refused(
    make_directory: MakeDirectory, documents: Documents, entry: str, value: Any, message: str
) -> None:
    directory = make_directory(documents)
    set_file_entry(directory / "index.json", entry, value)
    check_refused(directory, message)


@pytest.mark.parametrize(("entry", "value", "message"), DAMAGES_OF_AN_EARLIER_VERSION)
def test_a_damaged_index_of_an_earlier_version_is_refused(
    make_directory: MakeDirectory, documents: Documents, entry: str, value: Any, message: str
) -> None:
    directory = make_directory(documents)
    make_earlier(directory)
    set_file_entry(directory / "index.json", entry, value)
    check_refused(directory, message)


def test_a_short_member_of_an_earlier_version_is_refused(make_directory: MakeDirectory, documents: Documents) -> None:
    """A member's offset follows from its number, so every member but the last has to be full."""
    directory = make_directory(documents)
    make_earlier(directory)
    member = "splits.train.shards.0.members.1"
    set_file_entry(directory / "index.json", f"{member}.tokens", 63)
    set_file_entry(directory / "index.json", f"{member}.bytes", 254)
    check_refused(directory, "train-000000.tar member 1 does not fit its shard")


def test_a_truncated_index_is_refused(make_directory: MakeDirectory, documents: Documents) -> None:
    directory = make_directory(documents)
    path = directory / "index.json"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="index.json: not JSON"):
        load_index(directory)

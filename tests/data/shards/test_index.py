"""index.json, and every way it can be damaged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatape.data.shards.index import load_index
from tests.helpers.data.data_directory import Documents, MakeDirectory, edit_index, make_earlier

ANSWERS = {"file": "a.npy", "sha256": "", "examples": 1, "tokens": 1, "longest": 2, "unigram_entropy": 0.0}


def test_no_index(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="index.json: not found: .* make one with `megatape prepare corpus`"):
        load_index(tmp_path)


@pytest.mark.parametrize(
    "edit, message",
    [
        (
            lambda content: content.update(version=5),
            r"format and version are \('megatape-shards', 5\), .* \('megatape-shards', 4\)",
        ),
        (lambda content: content.update(format="other"), r"format and version are \('other', 4\)"),
        (lambda content: content.pop("tokenizer"), "corrupted .*tokenizer"),
        (lambda content: content["tokenizer"].update(companions={"../x": ""}), "'../x': not a plain file name"),
        (
            lambda content: content["tokenizer"].update(companions={"weight-00000.safetensors": ""}),
            "weight-00000.safetensors.* is 'weight-00000.safetensors': not a file of a tokenizer, which are tokenizer.json",
        ),
        (lambda content: content["tokenizer"].update(companions={"state.json": ""}), "'state.json': not a file of a tokenizer"),
        (lambda content: content["tokenizer"].update(file="index.json"), "'index.json': not a file of a tokenizer"),
        (
            lambda content: content["tokenizer"].update(companions={"tokenizer.model": ""}),
            "tokenizer.model is both the tokenizer's file and a companion",
        ),
        (
            lambda content: content["splits"]["train"]["shards"][1].update(file="train-000000.tar"),
            "train-000000.tar is listed as two files",
        ),
        (lambda content: content["splits"].pop("validation"), "corrupted .*validation"),
        (lambda content: content.update(answers={"train": ANSWERS}), "answers has train, not every split"),
        (
            lambda content: content.update(answers=dict.fromkeys(("train", "validation"), ANSWERS | {"file": "/x"})),
            "'/x': not a plain file name",
        ),
        (lambda content: content.update(dtype="uint32"), "dtype is uint32, vocab_size 100 needs uint16"),
        (lambda content: content["splits"]["train"].update(tokens=1), "tokens is 1, its shards hold"),
        (lambda content: content["splits"]["train"]["shards"][0].update(file="../x.tar"), "not a plain file name"),
        (lambda content: content["splits"]["train"]["shards"][0].update(file=".."), "'..': not a plain file name"),
        (lambda content: content["tokenizer"].update(file=".."), "'..': not a plain file name"),
        (
            lambda content: content["splits"]["train"]["shards"][0].update(bytes=10**30),
            r"shards.0.bytes: must be less than or equal to",
        ),
        (
            lambda content: content["tokenizer"].update(vocab_size=-1),
            "tokenizer.vocab_size: must be greater than or equal to 0",
        ),
        (lambda content: content.update(answers=""), "answers: must be an object"),
        (
            lambda content: content["splits"]["train"]["shards"][0].update(tokens=10**6),
            "train-000000.tar: its 1000000 tokens take .* bytes, it has",
        ),
        (
            lambda content: content["splits"]["train"]["shards"][0].update(member_tokens=0),
            "member_tokens: must be greater than or equal to 1",
        ),
        (lambda content: content["splits"]["train"]["shards"][0].pop("sha256"), "corrupted .*sha256"),
        (lambda content: content["splits"]["train"]["shards"][0].update(sha256="x"), "corrupted .*sha256: String should match"),
    ],
)
def test_damaged_index(
    make_directory: MakeDirectory, documents: Documents, edit: Callable[[dict[str, Any]], object], message: str
) -> None:
    directory = make_directory(documents)
    edit_index(directory, edit)
    with pytest.raises(ValueError, match=f"index.json: .*{message}"):
        load_index(directory)


@pytest.mark.parametrize(
    "edit, message",
    [
        (lambda content: content.pop("tokenizer"), "corrupted"),
        (lambda content: content.pop("splits"), "corrupted"),
        (lambda content: content["splits"].pop("validation"), "splits are train, not"),
        (lambda content: content["splits"]["train"].pop("text_bytes"), "text_bytes: Field required"),
        (
            lambda content: content["splits"]["train"]["shards"][0].update(members=[]),
            "train.shards.0.tokens: must be greater than or equal to",
        ),
        (lambda content: members(content)[1].pop("sha256"), "shards.0.members.1.sha256: Field required"),
        (lambda content: members(content)[1].update(offset=10**9), "train-000000.tar member 1 does not fit its shard"),
        (lambda content: members(content)[1].update(tokens=63, bytes=254), "train-000000.tar member 1 does not fit its shard"),
        (lambda content: members(content).pop(1), "train-000000.tar member 1 does not fit its shard"),
        (lambda content: members(content).pop(), "tokens is .*, its shards hold"),
    ],
)
def test_damaged_index_of_an_earlier_version(
    make_directory: MakeDirectory, documents: Documents, edit: Callable[[dict[str, Any]], object], message: str
) -> None:
    """Members are looked for at the places that follow from their numbers, so others are refused."""
    directory = make_directory(documents)
    make_earlier(directory)
    edit_index(directory, edit)
    with pytest.raises(ValueError, match=f"index.json: .*{message}"):
        load_index(directory)


def members(content: dict[str, Any]) -> Any:
    """Entries of the members of the first shard."""
    return content["splits"]["train"]["shards"][0]["members"]


def test_index_is_not_json(make_directory: MakeDirectory, documents: Documents) -> None:
    directory = make_directory(documents)
    path = directory / "index.json"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="index.json: not JSON"):
        load_index(directory)

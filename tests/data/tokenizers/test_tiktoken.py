"""Files of tiktoken: the tokenizer.json made of one gives tiktoken's ids."""

import base64
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from tiktoken_ext import openai_public
from transformers.convert_slow_tokenizer import bytes_to_unicode

from megatape.data.tokenizers.fast import DIVERGENT_INPUTS, FastTokenizer
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.tiktoken import ENCODINGS, END, read_ranks
from tests.helpers.models.imported import EDGE_CASES, TEXTS, byte_level
from tests.helpers.processes.command import Command

CASES = ["HTTPServer's DON'Ts iPhone \u01c5 \u0e17\u0e35\u0e48 12345 a/b//c\r\n/x  \n \n\t y", "x\u00a0\u00a0y  ", "\u0130's"]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 600 ranks, trained on Python's documentation."""
    of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    vocabulary = byte_level(600).get_vocab().items()
    path = tmp_path_factory.mktemp("tiktoken") / "own.tiktoken"
    tokens = [(rank, base64.b64encode(bytes(of[letter] for letter in token)).decode()) for token, rank in vocabulary]
    path.write_text("".join(f"{token} {rank}\n" for rank, token in sorted(tokens)))
    return path


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_ids_of_tiktoken(name: str, ranks: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the definitions that tiktoken brings along, with the ids of their special tokens."""
    status, _, errors = command("data", "tiktoken", ranks, "--output", tmp_path / "out", "--encoding", name)
    assert status == 0, errors
    ours = load_tokenizer(tmp_path / "out")
    special = ENCODINGS[name].special
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: {})
    theirs: dict[str, Any] = openai_public.ENCODING_CONSTRUCTORS[name]()
    assert theirs["special_tokens"] == special
    reference = tiktoken.Encoding(name, pat_str=theirs["pat_str"], mergeable_ranks=read_ranks(ranks), special_tokens=special)
    for text in [*TEXTS[::5], *EDGE_CASES, *DIVERGENT_INPUTS, *CASES]:
        assert ours.encode(text) == reference.encode_ordinary(text), repr(text[:60])
    assert (ours.begin, ours.eos_id, ours.vocab_size) == ([], special[END], max(special.values()) + 1)
    assert ours.decode(ours.encode(TEXTS[0])) == TEXTS[0]


def test_it_is_tokenized_fast(ranks: Path, tmp_path: Path, command: Command) -> None:
    assert command("data", "tiktoken", ranks, "--output", tmp_path / "out", "--encoding", "cl100k_base")[0] == 0
    FastTokenizer(load_tokenizer(tmp_path / "out"))


def test_bad_files(ranks: Path, tmp_path: Path, command: Command) -> None:
    lines = ranks.read_text().splitlines()
    path = tmp_path / "own.tiktoken"
    words = ["data", "tiktoken", path, "--output", tmp_path / "out"]
    known = ["--encoding", "r50k_base"]
    for content, given, message in (
        (lines, [], "encoding 'own' is unknown, and"),
        (lines[:100], known, "is no token: it is truncated, or no file of tiktoken"),
        ([*lines, "YWJjZGVm 5"], known, "two tokens have the same rank"),
        ([*lines, "a!b 700"], known, "own.tiktoken:601: b'a!b 700' is no token in base64"),
        ([*lines, "YWJjZGVm 50256"], known, "id 50256 is a rank of the file and a special token"),
    ):
        path.write_text("\n".join(content) + "\n")
        status, _, errors = command(*words, *given)
        assert status == 2, errors
        assert message in errors, errors
        assert not (tmp_path / "out").exists(), errors
    with pytest.raises(ValueError, match="it is a file of tiktoken, which `megatape data tiktoken` makes"):
        load_tokenizer(path)

"""Files of tiktoken: the tokenizer.json converted from one gives the ids of tiktoken."""

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
    byte_of_letter = {letter: byte for byte, letter in bytes_to_unicode().items()}
    lines = {}
    for letters, rank in byte_level(600).get_vocab().items():
        token = bytes(byte_of_letter[letter] for letter in letters)
        lines[rank] = f"{base64.b64encode(token).decode()} {rank}\n"
    path = tmp_path_factory.mktemp("tiktoken") / "own.tiktoken"
    path.write_text("".join(lines[rank] for rank in sorted(lines)))
    return path


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_converted_file_gives_the_ids_of_tiktoken(
    name: str, ranks: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared under each of tiktoken's own definitions, with the ids of their special tokens."""
    status, _, errors = command("data", "tiktoken", ranks, "--output", tmp_path / "out", "--encoding", name)
    assert status == 0, errors
    tokenizer = load_tokenizer(tmp_path / "out")
    special = ENCODINGS[name].special

    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: {})
    definition: dict[str, Any] = openai_public.ENCODING_CONSTRUCTORS[name]()
    assert special == definition["special_tokens"]
    reference = tiktoken.Encoding(
        name, pat_str=definition["pat_str"], mergeable_ranks=read_ranks(ranks), special_tokens=special
    )
    for text in [*TEXTS[::5], *EDGE_CASES, *DIVERGENT_INPUTS, *CASES]:
        assert tokenizer.encode(text) == reference.encode_ordinary(text), repr(text[:60])
    assert tokenizer.begin == []
    assert tokenizer.eos_id == special[END]
    assert tokenizer.vocab_size == max(special.values()) + 1
    assert tokenizer.decode(tokenizer.encode(TEXTS[0])) == TEXTS[0]


def test_gigatoken_reads_a_converted_file(ranks: Path, tmp_path: Path, command: Command) -> None:
    status, _, errors = command("data", "tiktoken", ranks, "--output", tmp_path / "out", "--encoding", "cl100k_base")
    assert status == 0, errors
    FastTokenizer(load_tokenizer(tmp_path / "out"))


KNOWN = ["--encoding", "r50k_base"]


@pytest.mark.parametrize(
    ("num_lines", "added_lines", "options", "message"),
    [
        (None, [], [], "encoding 'own' is unknown, and"),
        (100, [], KNOWN, "is no token: it is truncated, or no file of tiktoken"),
        (None, ["YWJjZGVm 5"], KNOWN, "two tokens have the same rank"),
        (None, ["a!b 700"], KNOWN, "own.tiktoken:601: b'a!b 700' is not a token in base64"),
        (None, ["YWJjZGVm 50256"], KNOWN, "id 50256 is a rank of the file and a special token"),
    ],
    ids=["unknown encoding", "truncated", "equal ranks", "not base64", "special rank"],
)
def test_unfit_files_of_tiktoken_are_refused(
    ranks: Path,
    tmp_path: Path,
    command: Command,
    num_lines: int | None,
    added_lines: list[str],
    options: list[str],
    message: str,
) -> None:
    lines = ranks.read_text().splitlines()[:num_lines]
    path = tmp_path / "own.tiktoken"
    path.write_text("\n".join([*lines, *added_lines]) + "\n")
    status, _, errors = command("data", "tiktoken", path, "--output", tmp_path / "out", *options)
    assert status == 2, errors
    assert message in errors
    assert not (tmp_path / "out").exists()


def test_a_file_of_tiktoken_is_not_a_tokenizer(ranks: Path) -> None:
    with pytest.raises(ValueError, match="it is a file of tiktoken, which `megatape data tiktoken` makes"):
        load_tokenizer(ranks)

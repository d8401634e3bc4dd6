"""gigatoken in the place of a tokenizer: the same ids, or none of its ids."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import gigatoken
import numpy as np
import pytest

from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.sources.source import Source
from megatape.data.tokenizers.fast import DIVERGENT_INPUTS, FastTokenizer, fast_tokenizer
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from tests.helpers.models.imported import EDGE_CASES, FAMILIES, TEXTS, sentencepiece_llama2

MARKS = ["\u2581 mark\u2581\u2581", "a</s>b<s> <unk>", "x<|end|><|begin|> <|endoftext|><tool> <|im_start|>", "<|eot|>"]


@pytest.mark.parametrize("kind", ["ours", "sentencepiece", *FAMILIES])
def test_the_same_ids(tokenizer: Tokenizer, kind: str, tmp_path: Path) -> None:
    """Of ours, of a model that puts a space in front, and of adopted ones; special tokens written out in a text included."""
    if kind != "ours":
        llama2 = SentencePieceTokenizer(sentencepiece_llama2())
        tokenizer = llama2 if kind == "sentencepiece" else load_tokenizer(FAMILIES[kind](tmp_path / kind))
    fast = FastTokenizer(tokenizer)
    texts = [*TEXTS[::5], *EDGE_CASES, *DIVERGENT_INPUTS, *MARKS]
    found = fast.encode_documents([text.encode() for text in texts])
    for text, ids, expected in zip(texts, found, tokenizer.encode_documents(texts), strict=True):
        assert ids.dtype == np.int32, repr(text[:60])
        assert ids.tolist() == expected.tolist(), repr(text[:60])
    assert fast.encode_documents([]) == []


@pytest.mark.parametrize("option", ["single_word", "lstrip", "rstrip"])
def test_options_of_added_tokens(tmp_path: Path, option: str) -> None:
    """gigatoken ignores single_word, so documents with the token inside a word would get other ids."""
    folder = FAMILIES["llama3"](tmp_path / "llama3")
    content = json.loads((folder / "tokenizer.json").read_text())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False} | {option: True}
    token_id = 1 + max(*content["model"]["vocab"].values(), *(token["id"] for token in content["added_tokens"]))
    content["added_tokens"].append({"id": token_id, "content": "fox", **flags})
    (folder / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(folder)
    texts = [
        "the fox",
        "foxes and foxtrot, firefox",
        "a  fox  jumps",
        "foxfox",
        "fox\n\nfox",
        "no such animal",
        *TEXTS[:5],
    ]
    found = FastTokenizer(tokenizer).encode_documents([text.encode() for text in texts])
    expected = tokenizer.encode_documents(texts)
    assert [ids.tolist() for ids in found] == [ids.tolist() for ids in expected]
    assert token_id in expected[0]


def test_an_added_token_that_stands_for_other_texts(tmp_path: Path) -> None:
    """A normalizer can map several texts to one token. They cannot be found in documents, so gigatoken is not used."""
    folder = FAMILIES["qwen"](tmp_path / "qwen")
    content = json.loads((folder / "tokenizer.json").read_text())
    token_id = 1 + max(*content["model"]["vocab"].values(), *(token["id"] for token in content["added_tokens"]))
    flags = {"single_word": True, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    content["added_tokens"].append({"id": token_id, "content": "fox", **flags})
    assert content["normalizer"] == {"type": "NFC"}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    reasons: list[str] = []
    assert fast_tokenizer(load_tokenizer(folder), reasons.append) is None
    assert "gigatoken gives other ids than tokenizer.json for a text that begins" in reasons[0]


class Faulty:
    """gigatoken with an id too many for texts that contain `mark`."""

    loaded = 0

    def __init__(self, right: gigatoken.Tokenizer, mark: str) -> None:
        self.right = right
        self.mark = mark
        Faulty.loaded += 1

    def encode(self, text: bytes) -> np.ndarray:
        ids = self.right.encode(text)
        return np.r_[ids, ids[:1]] if self.mark in text.decode() else ids


@pytest.fixture
def break_gigatoken(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """break_gigatoken(mark): what is loaded from now on is Faulty."""
    load = gigatoken.Tokenizer.from_json
    return lambda mark: monkeypatch.setattr(gigatoken.Tokenizer, "from_json", lambda content: Faulty(load(content), mark))


@pytest.mark.parametrize("mark", [DIVERGENT_INPUTS[1], "\u0300" * 300])
def test_a_library_that_differs_is_not_used(
    tokenizer: Tokenizer, break_gigatoken: Callable[[str], None], mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    break_gigatoken(mark)
    assert fast_tokenizer(tokenizer) is None
    expected = f"gigatoken gives other ids than tokenizer.model for a text that begins {mark[:40]!r}: tokenizing without it"
    assert expected in capsys.readouterr().err
    reasons: list[str] = []
    assert fast_tokenizer(tokenizer, reasons.append) is None
    assert len(reasons) == 1
    assert not capsys.readouterr().err


def test_a_tokenizer_that_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = FAMILIES["qwen"](tmp_path / "qwen")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"] = {"type": "WordLevel", "vocab": {"<|endoftext|>": 0, "a": 1}, "unk_token": "a"}
    (folder / "tokenizer.json").write_text(json.dumps(content | {"added_tokens": content["added_tokens"][:1]}))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
    assert fast_tokenizer(load_tokenizer(folder)) is None
    assert "qwen (Unsupported model type" in capsys.readouterr().err


def test_a_difference_found_on_the_way(
    tokenizer: Tokenizer,
    break_gigatoken: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One document in two is compared. Where one differs the tokenizer makes its whole unit; other units stay."""
    (tmp_path / "texts").mkdir()
    for number in range(30):
        (tmp_path / f"texts/{number:02}.txt").write_text(f"{'wolf' if number in (13, 14, 15) else 'dog'} {number}" * 9)
    monkeypatch.setattr("megatape.data.tokenizers.fast.COMPARED", 2)
    corpus = PreparationOptions(Source("text", (str(tmp_path / "texts"),), unit_bytes=600), 0.2, tokenizer, 0)
    break_gigatoken("wolf")
    index, _ = prepare(corpus, tmp_path / "out")
    errors = capsys.readouterr().err
    assert "texts/13.txt: gigatoken gives other ids" in errors
    assert errors.count("Its unit is tokenized again") == 1
    used = Faulty.loaded
    monkeypatch.setattr("megatape.data.prepare.command.fast_tokenizer", lambda *_: None)
    assert prepare(corpus, tmp_path / "slow")[0] == index
    assert Faulty.loaded == used > 0


def test_its_memory_is_bounded(tokenizer: Tokenizer, break_gigatoken: Callable[[str], None]) -> None:
    """It is loaded again after so many characters, with the same ids."""
    break_gigatoken("not in any text")
    texts = [f"{number} words" * 100 for number in range(50)]
    fast = FastTokenizer(tokenizer, reload_after=10_000)
    before = Faulty.loaded
    documents = fast.encode_documents([text.encode() for text in texts])
    assert Faulty.loaded - before in (3, 4, 5)
    assert all(np.array_equal(ids, other) for ids, other in zip(documents, tokenizer.encode_documents(texts), strict=True))


def test_without_the_library(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    assert fast_tokenizer(tokenizer) is None

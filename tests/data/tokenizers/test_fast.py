"""Tokenizing with gigatoken: it gives the same ids as the tokenizer, or it is not used."""

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


def check_same_ids(tokenizer: Tokenizer, texts: list[str]) -> None:
    """Compare the ids of gigatoken with those of the tokenizer."""
    documents = FastTokenizer(tokenizer).encode_documents([text.encode() for text in texts])
    all_expected = list(tokenizer.encode_documents(texts))
    assert documents.ids.dtype == np.int32
    assert documents.lengths.tolist() == [len(expected) for expected in all_expected]
    assert documents.lengths.sum() == documents.ids.size
    for number, (text, expected) in enumerate(zip(texts, all_expected, strict=True)):
        assert documents.document(number).tolist() == expected.tolist(), repr(text[:60])


ALL_TEXTS = [*TEXTS[::5], *EDGE_CASES, *DIVERGENT_INPUTS, *MARKS]


def test_our_tokenizers_have_the_same_ids(tokenizer: Tokenizer) -> None:
    check_same_ids(tokenizer, ALL_TEXTS)


def test_a_sentencepiece_model_that_prepends_a_space_has_the_same_ids() -> None:
    check_same_ids(SentencePieceTokenizer(sentencepiece_llama2()), ALL_TEXTS)


@pytest.mark.parametrize("family", FAMILIES)
def test_adopted_tokenizers_have_the_same_ids(family: str, tmp_path: Path) -> None:
    """Texts also contain special tokens written out."""
    check_same_ids(load_tokenizer(FAMILIES[family](tmp_path / family)), ALL_TEXTS)


def test_no_texts_are_no_documents(tokenizer: Tokenizer) -> None:
    documents = FastTokenizer(tokenizer).encode_documents([])
    assert documents.ids.size == documents.lengths.size == 0


def add_fox_token(folder: Path, **flags: bool) -> int:
    """Add the token "fox" to a tokenizer.json. Return its id."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    ids = list(content["model"]["vocab"].values())
    ids += [token["id"] for token in content["added_tokens"]]
    token_id = 1 + max(ids)
    all_flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False} | flags
    content["added_tokens"].append({"id": token_id, "content": "fox", **all_flags})
    path.write_text(json.dumps(content))
    return token_id


@pytest.mark.parametrize("option", ["single_word", "lstrip", "rstrip"])
def test_options_of_added_tokens_are_respected(tmp_path: Path, option: str) -> None:
    """gigatoken ignores single_word, so documents with the token inside a word would get other ids."""
    folder = FAMILIES["llama3"](tmp_path / "llama3")
    token_id = add_fox_token(folder, **{option: True})
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
    assert token_id in tokenizer.encode(texts[0])
    check_same_ids(tokenizer, texts)


def test_an_added_token_that_is_normalized_is_refused(tmp_path: Path) -> None:
    """A normalizer can map several texts to one token. They cannot be found in documents, so gigatoken is not used."""
    folder = FAMILIES["qwen"](tmp_path / "qwen")
    add_fox_token(folder, single_word=True, normalized=True)
    content = json.loads((folder / "tokenizer.json").read_text())
    assert content["normalizer"] == {"type": "NFC"}
    reasons: list[str] = []
    assert fast_tokenizer(load_tokenizer(folder), reasons.append) is None
    assert "gigatoken gives other ids than tokenizer.json for a text that begins" in reasons[0]


class Faulty:
    """gigatoken that adds an id to texts containing `mark`."""

    num_loaded = 0

    def __init__(self, correct: gigatoken.Tokenizer, mark: str) -> None:
        self.correct = correct
        self.mark = mark
        Faulty.num_loaded += 1

    def encode(self, text: bytes) -> np.ndarray:
        ids = self.correct.encode(text)
        if self.mark in text.decode():
            return np.r_[ids, ids[:1]]
        return ids


@pytest.fixture
def break_gigatoken(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """break_gigatoken(mark): tokenizers loaded from now on are Faulty."""
    load = gigatoken.Tokenizer.from_json

    def break_from_now_on(mark: str) -> None:
        monkeypatch.setattr(gigatoken.Tokenizer, "from_json", lambda content: Faulty(load(content), mark))

    return break_from_now_on


@pytest.mark.parametrize("mark", [DIVERGENT_INPUTS[1], "\u0300" * 300])
def test_a_library_that_differs_is_not_used(
    tokenizer: Tokenizer, break_gigatoken: Callable[[str], None], mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    break_gigatoken(mark)
    expected = f"gigatoken gives other ids than tokenizer.model for a text that begins {mark[:40]!r}: tokenizing without it"
    assert fast_tokenizer(tokenizer) is None
    assert expected in capsys.readouterr().err


def test_the_reason_is_reported_to_the_caller_alone(
    tokenizer: Tokenizer, break_gigatoken: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    break_gigatoken(DIVERGENT_INPUTS[1])
    reasons: list[str] = []
    assert fast_tokenizer(tokenizer, reasons.append) is None
    assert len(reasons) == 1
    assert not capsys.readouterr().err


def test_a_tokenizer_that_gigatoken_cannot_read_is_used_without_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = FAMILIES["qwen"](tmp_path / "qwen")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"] = {"type": "WordLevel", "vocab": {"<|endoftext|>": 0, "a": 1}, "unk_token": "a"}
    (folder / "tokenizer.json").write_text(json.dumps(content | {"added_tokens": content["added_tokens"][:1]}))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
    assert fast_tokenizer(load_tokenizer(folder)) is None
    assert "qwen (Unsupported model type" in capsys.readouterr().err


def test_a_difference_found_while_preparing_repeats_its_unit_alone(
    tokenizer: Tokenizer,
    break_gigatoken: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One document in two is compared. The tokenizer repeats the unit of a document that differs; other units stay."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(30):
        animal = "dog"
        if number in (13, 14, 15):
            animal = "wolf"
        (texts / f"{number:02}.txt").write_text(f"{animal} {number}" * 9)
    corpus = PreparationOptions(Source("text", (str(texts),), unit_bytes=600), 0.2, tokenizer, 0)
    monkeypatch.setattr("megatape.data.tokenizers.fast.COMPARED", 2)
    break_gigatoken("wolf")
    index, _ = prepare(corpus, tmp_path / "out")
    errors = capsys.readouterr().err
    assert "texts/13.txt: gigatoken gives other ids" in errors
    assert errors.count("Its unit is tokenized again") == 1
    assert Faulty.num_loaded > 0

    num_loaded = Faulty.num_loaded
    monkeypatch.setattr("megatape.data.prepare.command.fast_tokenizer", lambda *_: None)
    expected, _ = prepare(corpus, tmp_path / "slow")
    assert Faulty.num_loaded == num_loaded
    assert index == expected


def test_gigatoken_is_loaded_again_to_bound_its_memory(tokenizer: Tokenizer, break_gigatoken: Callable[[str], None]) -> None:
    """gigatoken's cache grows with the characters that it has read. Reloading changes no id."""
    break_gigatoken("not in any text")
    texts = [f"{number} words" * 100 for number in range(50)]
    fast = FastTokenizer(tokenizer, reload_after=10_000)
    before = Faulty.num_loaded
    documents = fast.encode_documents([text.encode() for text in texts])
    assert Faulty.num_loaded - before in (3, 4, 5)
    assert np.array_equal(documents.ids, np.concatenate(tokenizer.encode_documents(texts)))


def test_without_gigatoken_the_tokenizer_is_used(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    assert fast_tokenizer(tokenizer) is None

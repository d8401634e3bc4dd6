"""Tokenizers that agree on English text, and differ elsewhere."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatape.data.tokenizers.comparison import tokenizer_difference
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.data.tokenizers.tokenizer import JSON_FILE, Tokenizer
from megatape.hf.exporting.tokenizer import write_tokenizer

TEXTS = ["The quick brown fox jumps over the lazy dog, twice.", "Съешь ещё этих мягких французских булок, да выпей чаю."] * 9

Edited = Callable[[Callable[[dict[str, Any]], None]], Tokenizer]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return SentencePieceTokenizer(train_tokenizer(TEXTS, 330))


@pytest.fixture
def edited(tokenizer: SentencePieceTokenizer, tmp_path: Path) -> Edited:
    """Return a function that exports the tokenizer, edits its tokenizer.json, and loads the result."""

    def load(edit: Callable[[dict[str, Any]], None]) -> Tokenizer:
        write_tokenizer(tokenizer, 64, tmp_path)
        path = tmp_path / JSON_FILE
        content = json.loads(path.read_text())
        edit(content)
        path.write_text(json.dumps(content))
        (tmp_path / "tokenizer.model").unlink(missing_ok=True)
        return load_tokenizer(tmp_path)

    return load


def test_formats_of_one_tokenizer_are_equal(tokenizer: Tokenizer, edited: Edited) -> None:
    exported = edited(lambda content: None)

    assert exported.sha256 != tokenizer.sha256
    assert tokenizer_difference(tokenizer, exported) is None
    assert tokenizer_difference(exported, tokenizer) is None


def test_letters_of_another_script_are_compared(tokenizer: Tokenizer, edited: Edited) -> None:
    def swap(content: dict[str, Any]) -> None:
        vocabulary = content["model"]["vocab"]
        vocabulary["х"], vocabulary["ц"] = vocabulary["ц"], vocabulary["х"]

    other = edited(swap)

    assert other.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])
    assert "is 'х' and 'ц'" in str(tokenizer_difference(tokenizer, other))


def add_token(content: dict[str, Any], text: str, special: bool) -> None:
    token = max(content["model"]["vocab"].values()) + 1
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    content["added_tokens"].append({"id": token, "content": text, **flags})


def test_added_tokens_are_compared(tokenizer: Tokenizer, edited: Edited) -> None:
    """A special token does not occur in texts. Other tokens do, and a model has no weights for those that only the data has."""
    special = edited(lambda content: add_token(content, "<pad>", special=True))
    ordinary = edited(lambda content: add_token(content, "<tool>", special=False))

    assert tokenizer_difference(tokenizer, special) is None
    assert "is '<pad>' and None" in str(tokenizer_difference(special, tokenizer))
    assert tokenizer_difference(tokenizer, ordinary) == "the ids of a text that begins '<tool>' differ"


def test_ids_of_the_same_tokens_are_compared(tokenizer: Tokenizer, edited: Edited) -> None:
    """The vocabulary is the same, but capital letters become small ones."""

    def lower(content: dict[str, Any]) -> None:
        steps = [step for step in (content["normalizer"],) if step is not None]
        content["normalizer"] = {"type": "Sequence", "normalizers": [*steps, {"type": "Lowercase"}]}

    assert "the ids of a text that begins" in str(tokenizer_difference(tokenizer, edited(lower)))

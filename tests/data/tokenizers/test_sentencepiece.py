"""SentencePiece tokenizers: texts survive a round trip, training is deterministic, and unfit models are refused."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from megatape.data.tokenizers.files import load_tokenizer, stored_tokenizer
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from tests.helpers.models.imported import sentencepiece_llama2

TEXTS = [
    "The fox",
    "  leading and trailing   ",
    "\n\n\ttabs\tand\r\nnewlines\n",
    " ",
    "    indented\n        more\n",
    "\u2581 the space mark \u2581\u2581 itself\u2581",
    "\u2585 \ufeff \ufffd \x00 \u2028 \xa0",
    "naïve e\u0301 漢字 😀 ﬁ Ⅳ",
    "</s> <s> <unk> <0x41>",
    "0123456789 3.14",
    "x" * 100_000,
]


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_survives_a_round_trip(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_encode_documents_adds_control_tokens(tokenizer: Tokenizer) -> None:
    for text, ids in zip(TEXTS, tokenizer.encode_documents(TEXTS), strict=True):
        assert ids.dtype == np.int32
        assert ids.tolist() == [1, *tokenizer.encode(text), 2]
        assert not {0, 1, 2} & set(ids[1:-1].tolist())


def test_learns_words_spaces_and_single_digits(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("the dog jumps over the fox")) < 10
    assert len(tokenizer.encode("    ")) == 1
    assert len(tokenizer.encode("12345")) == 5


def test_training_is_deterministic(tokenizer: Tokenizer) -> None:
    text = "some words, other words and 3 more words; " * 20
    model = train_tokenizer([text], 300)
    assert model == train_tokenizer([text], 300)
    assert SentencePieceTokenizer(model).sha256 == hashlib.sha256(model).hexdigest()
    assert SentencePieceTokenizer(model).vocab_size == 300


def test_training_reads_long_lines() -> None:
    long_line = "zebra " * 20_000 + "q" * 100_000  # longer than the trainer accepts as one line, or as one word
    tokenizer = SentencePieceTokenizer(train_tokenizer([long_line], 280))
    assert len(tokenizer.encode(" zebra zebra")) == 2


def test_training_stops_at_max_training_bytes() -> None:
    def texts() -> Iterator[str]:
        yield "alpha beta gamma " * 10
        raise AssertionError("read on")

    assert train_tokenizer(texts(), 275, max_training_bytes=100)


def test_a_vocabulary_too_large_for_the_text_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot train 4096 tokens .* Please set it to a value <= 28\d"):
        train_tokenizer(["hello world"], 4096)


def test_a_vocabulary_too_small_for_the_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot train 100 tokens .* 100 vs 267. Increase vocab_size"):
        train_tokenizer(["hello world"], 100)


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="tok.model: no such tokenizer: check the path"):
        load_tokenizer(tmp_path / "tok.model")


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tok.model"
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="tok.model: not a SentencePiece model"):
        load_tokenizer(path)


def test_a_stored_tokenizer_with_another_hash_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "tokenizer.model").write_bytes(tokenizer.files["tokenizer.model"])
    assert stored_tokenizer(tmp_path, tokenizer.hashes).encode("fox") == tokenizer.encode("fox")
    with pytest.raises(ValueError, match=f"tokenizer.model: sha256 is {tokenizer.sha256}, expected 00"):
        stored_tokenizer(tmp_path, {"tokenizer.model": "00"})


def model_without(role: str) -> bytes:
    """Return Llama 2's model without the beginning ("bos") or end token ("eos")."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

    model = ModelProto.FromString(sentencepiece_llama2())
    token_id = getattr(model.trainer_spec, f"{role}_id")
    model.pieces[token_id].piece = f"<no {role}>"
    setattr(model.trainer_spec, f"{role}_id", -1)
    serialized: bytes = model.SerializeToString()
    return serialized


def test_a_model_without_a_beginning_token_starts_documents_with_their_text() -> None:
    tokenizer: Tokenizer = SentencePieceTokenizer(model_without("bos"))
    assert tokenizer.bos_id is None
    assert tokenizer.encode_documents(["a b"])[0].tolist() == [*tokenizer.encode("a b"), 2]


def test_a_model_without_an_end_token_is_refused() -> None:
    with pytest.raises(ValueError, match="it has no </s>"):
        SentencePieceTokenizer(model_without("eos"))

"""AutoTokenizer gives the ids of SentencePiece, as training used them, for every text."""

import gzip
import io
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.hf.tokenizer import special_tokens, write_tokenizer
from megatape.hf.tokenizer_sentencepiece import build_tokenizer, read_proto

MARK = "\u2581"
EDGE_CASES = [
    "",
    " ",
    "     ",
    "  leading and trailing   ",
    "\n\n\ttabs\tand\r\nnew\rlines\n",
    "0123456789 3.14 1,000,000 ٣٤٥ ½²",
    "<s> <unk> </s> <s></s> <0x41> <pad> <|endoftext|> [CLS]",
    f"{MARK} the space mark {MARK}{MARK} itself{MARK}",
    f"{MARK}",
    "😀👩‍👩‍👧‍👦🏳️‍🌈 emoji👍🏽",
    "漢字かな交じり文 한국어 中文，。",
    "e\u0301 a\u0308\u0323 combining, naïve ﬁ Ⅳ ß",
    "עברית العربية \u202eright to left\u202c",
    "zero\u200bwidth\u200d\ufeff\u2060 joiners",
    "".join(map(chr, range(32))) + "\x7f\x80\xa0\xad",
    "\u2028\u2029\u3000\u00a0 \u1680 spaces",
    "\ufffd\ufffe\U0010ffff\ue000 private and none",
    "\u2585 SentencePiece's own signs \u2047",
    "x" * 20_000,
    " x" * 5_000,
    "ab" * 3000 + "aba" * 3000,
]


def python_files() -> list[str]:
    """100 files of the standard library."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))[:100]
    assert len(files) == 100
    return [path.read_text(encoding="utf-8") for path in files]


def c4_texts() -> list[str]:
    if "MEGATAPE_C4" not in os.environ:
        pytest.skip("MEGATAPE_C4 does not name a folder with files of C4 (*.json.gz)")
    files = sorted(Path(os.environ["MEGATAPE_C4"]).glob("**/*.json.gz"))
    assert files
    return [json.loads(line)["text"] for path in files for line in gzip.open(path)]


def load(model: bytes, folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of `model` as transformers loads it from `folder`, beside a Llama's config.json."""
    write_tokenizer(SentencePieceTokenizer(model), 10**9, folder)
    # A class of tokenizers is registered for Llama, and would change ids.
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, PreTrainedTokenizerBase]:
    """A tokenizer of 2,000 tokens trained on Python code, and its export."""
    model = train_tokenizer(python_files()[:20], 2000)
    return SentencePieceTokenizer(model), load(model, tmp_path_factory.mktemp("tokenizer"))


def check(ours: Tokenizer, theirs: PreTrainedTokenizerBase, texts: list[str]) -> None:
    for text in texts:
        expected = [*ours.begin, *ours.encode(text)]
        found = theirs(text).input_ids
        assert found == expected, f"ids of {text[:60]!r} differ"
        assert theirs.decode(found, skip_special_tokens=True) == text


@pytest.mark.parametrize("texts", [lambda: EDGE_CASES, python_files, c4_texts], ids=["edge cases", "Python", "C4"])
def test_ids_and_texts(real: tuple[Tokenizer, PreTrainedTokenizerBase], texts: Callable[[], list[str]]) -> None:
    check(*real, texts())


def test_unicode_characters(real: tuple[Tokenizer, PreTrainedTokenizerBase]) -> None:
    """All of two and three bytes, and some of four."""
    codes = [*range(0xD800), *range(0xE000, 0x10000), *range(0x10000, sys.maxunicode, 37)]
    ours, theirs = real
    text = "".join(map(chr, codes))
    assert theirs(text, add_special_tokens=False).input_ids == ours.encode(text)
    assert theirs.decode(ours.encode(text)) == text


def random_cases() -> Iterator[tuple[bytes, list[str]]]:
    """Tokenizers of texts over a few letters, where most merges overlap and compete, and other such texts."""
    generator = random.Random(0)
    for alphabet in ("ab", "a ", "ab ", "abc 1"):
        lines = ["".join(generator.choices(alphabet, k=generator.randint(5, 60))) for _ in range(40)]
        texts = ["".join(generator.choices(alphabet + MARK, k=generator.randint(0, 40))) for _ in range(500)]
        for dummy_prefix in (False, True):
            yield sentencepiece_bpe(lines, add_dummy_prefix=dummy_prefix, split_by_whitespace=False), texts


def sentencepiece_bpe(lines: list[str], **changes: Any) -> bytes:
    """A SentencePiece model trained like ours, except for `changes`."""
    model = io.BytesIO()
    settings: dict[str, Any] = {
        "model_type": "bpe",
        "vocab_size": 300,
        "hard_vocab_limit": False,
        "byte_fallback": True,
        "split_digits": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
        "allow_whitespace_only_pieces": True,
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **settings | changes)
    return model.getvalue()


def test_competing_merges_and_dummy_prefix() -> None:
    prefixed = 0
    for model, texts in random_cases():
        ours = SentencePieceTokenizer(model)
        proto = read_proto(ours)
        theirs = build_tokenizer(proto)
        prefixed += proto.normalizer_spec.add_dummy_prefix
        for text in texts:
            assert theirs.encode(text).ids == [1, *ours.encode(text)], repr(text)
    assert prefixed == 4


def test_dummy_prefix_round_trip(tmp_path: Path) -> None:
    """As Llama's own tokenizer has it."""
    model = sentencepiece_bpe(python_files()[:2], vocab_size=500, add_dummy_prefix=True)
    check(SentencePieceTokenizer(model), load(model, tmp_path), [text for text in EDGE_CASES if MARK not in text])


def test_batches_begin_with_bos_and_are_padded_on_the_left(real: tuple[Tokenizer, PreTrainedTokenizerBase]) -> None:
    ours, theirs = real
    batch = theirs(["def f", "</s>"], padding=True)
    short, long = [1, *ours.encode("def f")], [1, *ours.encode("</s>")]
    width = max(len(short), len(long))
    for ids, mask, row in zip(batch.input_ids, batch.attention_mask, (short, long), strict=True):
        assert ids == [0] * (width - len(row)) + row
        assert mask == [0] * (width - len(row)) + [1] * len(row)
    assert len(short) != len(long)
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (1, 2, 0)
    assert theirs.decode([1, *ours.encode("a"), 2, 0], skip_special_tokens=True) == "a"


def test_saving_again_keeps_ids(real: tuple[Tokenizer, PreTrainedTokenizerBase], tmp_path: Path) -> None:
    ours, theirs = real
    theirs.save_pretrained(tmp_path)
    check(ours, AutoTokenizer.from_pretrained(tmp_path), EDGE_CASES)


TEXT = ["the quick brown fox jumps over the lazy dog"] * 3


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"model_type": "unigram", "vocab_size": 290}, "it is not of type BPE"),
        ({"byte_fallback": False, "vocab_size": 40}, "it has no byte fallback"),
        ({"normalization_rule_name": "nmt_nfkc"}, "it normalizes text"),
        ({"remove_extra_whitespaces": True}, "it removes extra whitespace"),
        ({"treat_whitespace_as_suffix": True}, "it puts whitespace at the end of words"),
        ({"user_defined_symbols": ["<tool>"]}, r"it has user-defined or unused pieces \['<tool>'\]"),
        ({"bos_id": -1, "eos_id": 1}, "it has no <unk>, <s> or </s>"),
    ],
)
def test_what_cannot_be_said_is_refused(changes: dict[str, Any], fault: str) -> None:
    tokenizer = SentencePieceTokenizer(sentencepiece_bpe(TEXT, **changes), "tok.model")
    with pytest.raises(ValueError, match=f"tok.model: {fault}, so tokenizer.json could not give the same ids"):
        special_tokens(tokenizer)

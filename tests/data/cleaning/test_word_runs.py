"""Finding words, in scripts with and without spaces."""

import json
from pathlib import Path

import numpy as np
import pytest

from megatape.data.cleaning.near_duplicates.near_duplicates import BucketText, NearDuplicates
from megatape.data.cleaning.word_runs import WORD, hash_runs
from tests.helpers.data.rules import apply_rule

CHINESE = "天地玄黃宇宙洪荒日月盈昃辰宿列張寒來暑往秋收冬藏閏餘成歲律呂調陽雲騰致雨露結為霜金生麗水玉出崑岡劍號巨闕珠稱夜光"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Two words, and_this 3.14", ["Two", "words", "and_this", "3", "14"]),
        ("naïve Straße слово 한국어 단어", ["naïve", "Straße", "слово", "한국어", "단어"]),
        ("漢字とカナ。GPT4は2023年", [*"漢字とカナ", "GPT4", "は", "2023", "年"]),
        ("ไทย 𠀀", [*"ไทย𠀀"]),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert WORD.findall(text) == words
    assert hash_runs(text, 2).size == len(words) - 1


def test_evaluations_in_texts_without_spaces_are_found(tmp_path: Path) -> None:
    """If a sentence were one word, no run of 13 words would be shared."""
    questions = tmp_path / "a.jsonl"
    questions.write_text(json.dumps({"question": CHINESE[:30]}))
    rule = f"decontaminate:files={questions}"

    assert apply_rule(rule, f"他說{CHINESE[5:25]}嗎") == f"dropped by decontaminate: shares 13 words with {questions}"
    assert apply_rule(rule, CHINESE[25:]) == CHINESE[25:]


def test_near_duplicates_without_spaces_are_found() -> None:
    """If a sentence were one word, one changed character would hide a duplicate."""
    near = NearDuplicates()
    original = near.signature(CHINESE).shingles
    changed = near.signature(CHINESE.replace("珠", "豬")).shingles
    backwards = near.signature(CHINESE[::-1]).shingles

    assert near.matches_bucket(1, changed, [BucketText(0, original)]) == [0]
    assert np.intersect1d(original, backwards).size == 0

"""Words of texts, in scripts with and without spaces."""

import json
from pathlib import Path

import numpy as np
import pytest

from megatape.data.cleaning.near_duplicates import BucketText, NearDuplicates
from megatape.data.cleaning.word_runs import WORD, hash_runs
from tests.helpers.data.rules import verdict

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


def test_texts_without_spaces_are_compared_by_their_characters(tmp_path: Path) -> None:
    """If a sentence were one word, no evaluation would be found in a text, and one changed character would hide a duplicate."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"question": CHINESE[:30]}))
    rule = f"decontaminate:files={tmp_path / 'a.jsonl'}"
    assert verdict(rule, f"他說{CHINESE[5:25]}嗎") == f"dropped by decontaminate: shares 13 words with {tmp_path / 'a.jsonl'}"
    assert verdict(rule, CHINESE[25:]) == CHINESE[25:]
    near = NearDuplicates()
    changed = CHINESE.replace("珠", "豬")
    (_, first), (_, second), (_, other) = map(near.signature, (CHINESE, changed, CHINESE[::-1]))
    assert near.matches_bucket(1, second, [BucketText(0, first)]) == [0]
    assert not np.intersect1d(first, other).size

"""Each synthetic task's answers, found again from the text before them by another way than the generator's, and its splits."""

import itertools
import re
from collections import Counter
from collections.abc import Callable
from functools import partial, reduce

import numpy as np
import pytest

from megatape.data.synthetic.state_tracking import A5, S3, S5
from megatape.data.synthetic.task import TRAIN
from megatape.registry import SYNTHETIC_TASKS
from tests.helpers.data.synthetic import task

COUNT = 200


def _in_order(text: str) -> str:
    return "".join(letter * count for letter, count in sorted(Counter(text[:-1]).items()))


def _sum(text: str) -> str:
    carry = 0
    digits = "0123456789"
    total = ""
    a, b = text[:-1].split("+")
    for place in range(max(len(a), len(b))):
        carry, digit = divmod(int(a[place : place + 1] or 0) + int(b[place : place + 1] or 0) + carry, 10)
        total += digits[digit]
    return total + "1" * carry


GROUPS = {"state_s3": S3, "state_a5": A5, "state_s5": S5}
MATRICES = {
    name: {
        symbol: np.eye(len(each), dtype=int)[:, list(each)] for symbol, each in zip(kind.alphabet, kind.elements, strict=True)
    }
    for name, kind in GROUPS.items()
}  # whose columns are the images of unit vectors


def _product(name: str, text: str) -> str:
    """The product of the elements of a text, as matrices, without the answers in between."""
    matrices = MATRICES[name]
    product = reduce(np.matmul, (matrices[symbol] for symbol in reversed(text[::2])))
    return next(symbol for symbol, matrix in matrices.items() if (matrix == product).all())


def _is_identity(word: str) -> str:
    """Whether five points are where they were after the cycles of a word, one letter at a time."""
    cycles = {"x": [0, 1, 2], "y": [0, 1, 2, 3, 4], "X": [2, 1, 0], "Y": [4, 3, 2, 1, 0]}
    points = list(range(5))
    for letter in word:
        following = dict(itertools.pairwise([*cycles[letter], cycles[letter][0]]))
        points = [following.get(point, point) for point in points]
    return str(int(points == list(range(5))))


def _nth_last(back: int) -> Callable[[str], str]:
    return lambda text: re.findall(f"{text[-1]}([a-z])", text.split(">")[0])[-back]


def _shifted(text: str) -> str:
    letters, letter, shift = re.fullmatch("([a-zA-Z]+)>([a-zA-Z])([+-][0-9]+)", text).groups()
    return letters[letters.index(letter) + int(shift)]


def _closing(text: str) -> str:
    while (shorter := re.sub(r"\(\)|\[\]|\{\}|<>", "", text)) != text:
        text = shorter
    return {"(": ")", "[": "]", "{": "}", "<": ">"}[text[-1]]


def _ones(text: str) -> str:
    regions = re.findall(r"\[([01]*)\]", text)
    return f"{regions[len(text.split('>')[1]) // 3].count('1'):03}"


# The answer, from what precedes it.
SOLUTIONS: dict[str, Callable[[str], str]] = {
    "flip_flop": lambda text: re.findall("w(.)", text)[-1],
    "copy": lambda text: text.removesuffix(">"),
    "reverse": lambda text: "".join(reversed(text.removesuffix(">"))),
    "sort": _in_order,
    "parity": lambda text: str(int(text[:-1], 2).bit_count() % 2),
    "nth_after_marker": lambda text: text.split("#")[1][int(text[-1]) - 1],
    "recall": lambda text: re.findall(f"{text[-1]}([a-z])", text)[0],
    "counting": lambda text: str(text[text.rindex(f"{text[-2]}=") :].count(f"{text[-2]}+")),
    "selective_copy": lambda text: text.replace(".", "").split(">")[0][len(text.split(">")[1])],
    "induction": lambda text: text[text.index(text[-1]) + 1],
    "passkey": lambda text: re.findall(f"{text[-2]}:([0-9]{{3}})", text)[0],
    "addition": _sum,
    **{name: partial(_product, name) for name in ("state_s3", "state_a5", "state_s5")},
    "word_a5": lambda text: _is_identity(text.removesuffix("=")),
    **{f"{name}_back": _nth_last(back) for name, back in (("two", 2), ("three", 3), ("four", 4))},
    "reassigned_recall": _nth_last(1),
    "indirect_indexing": _shifted,
    "many_keys": lambda text: re.findall(f"{text[-1]}([a-z])", text)[0],
    "dyck": _closing,
    "contextual_counting": _ones,
}
WALKS = {"ring", "torus"}  # test_navigation.py has their answers, which depend on the side of the split, too


def _distance(text: str) -> int:
    """From the first of equal characters to the last one, which ends the text."""
    return len(text) - 1 - text.index(text[-1])


# The key of an answer, from the text up to and with its first character.
KEYS: dict[str, Callable[[str], int]] = {
    "flip_flop": lambda text: len(text) - 1 - text.rindex("w") - 1,
    **dict.fromkeys(("copy", "reverse", "sort", "parity"), lambda text: text.index(">")),
    "nth_after_marker": lambda text: len(text) - 1 - text.index("#") - int(text[-2]),
    "recall": lambda text: len(text) - 2 - text[:-2].rindex(text[-2]),
    "counting": lambda text: len(text) - 1 - text.rindex(f"{text[-3]}="),
    "induction": _distance,
    "passkey": lambda text: len(text) - 3 - text[:-3].rindex(text[-3]),
    "addition": lambda text: max(map(len, re.findall("[0-9]+(?=[+=])", text))),
    **dict.fromkeys(("state_s3", "state_a5", "state_s5"), lambda text: len(text) // 2),
    "word_a5": lambda text: text.index("="),
    "reassigned_recall": lambda text: len(text) - 1 - text.split(">")[0].rindex(text[-2]) - 1,
    "many_keys": lambda text: len(text) - 2 - text[:-2].rindex(text[-2]),
}


@pytest.mark.parametrize("name", sorted(set(SYNTHETIC_TASKS) - WALKS))
def test_answers_follow_from_the_text_before_them(name: str) -> None:
    made = task(name)
    for split in made.splits:
        for sample in made.samples(split, COUNT // 4):
            for answer in sample.answers:
                assert sample.text[answer.begin : answer.end] == SOLUTIONS[name](sample.text[: answer.begin]), (split, sample)
                if name in KEYS:
                    assert answer.key == KEYS[name](sample.text[: answer.begin + 1]), (split, sample)


def _blanks(text: str) -> int:
    return text.count(".")


# A number of a text that is larger in every sample of a split than in any of training.
LARGER: list[tuple[str, str, Callable[[str], int]]] = [
    *((name, "long", len) for name in ("copy", "reverse", "sort", "parity", "passkey")),
    ("nth_after_marker", "late", lambda text: text.index("#")),
    ("nth_after_marker", "far", lambda text: text.index("?") - text.index("#")),
    ("recall", "far", len),
    ("recall", "many", lambda text: len(set(re.findall("[A-Z]", text)))),
    ("counting", "long", len),
    ("counting", "long_sparse", len),
    ("selective_copy", "dense", lambda text: -_blanks(text)),
    ("selective_copy", "sparse", _blanks),
    ("selective_copy", "sparser", _blanks),
    ("induction", "far", _distance),
    ("induction", "farther", _distance),
    ("passkey", "many", lambda text: text.count(":")),
    *((name, "long", len) for name in ("state_s3", "state_a5", "state_s5", "word_a5", "indirect_indexing", "four_back")),
    ("four_back", "many", lambda text: len(set(re.findall("[A-Z]", text)))),
    ("many_keys", "far", len),
    ("many_keys", "many", lambda text: len(set(re.findall("[^a-z]", text)))),
    ("addition", "long", lambda text: max(map(len, re.findall("[0-9]+(?=[+=])", text)))),
    ("dyck", "long", len),
    ("contextual_counting", "long", lambda text: text.index(">")),
    ("contextual_counting", "many", lambda text: text.count("[")),
    ("ring", "dense", lambda text: -len(text)),
    ("torus", "sparse", len),
]


@pytest.mark.parametrize(("name", "split", "number"), LARGER)
def test_splits_go_beyond_training(name: str, split: str, number: Callable[[str], int]) -> None:
    made = task(name)
    trained = [number(sample.text) for sample in made.samples(TRAIN, COUNT)]
    assert min(number(sample.text) for sample in made.samples(split, COUNT)) > max(trained)


# Strings of one or two letters, small sums, short counts and short strings of bits do come again.
OFTEN = {"copy": 0.1, "reverse": 0.1, "sort": 0.1, "addition": 0.2, "counting": 0.02, "parity": 1, "word_a5": 0.1}


@pytest.mark.parametrize("name", SYNTHETIC_TASKS)
def test_no_answer_is_frequent_and_no_text_comes_again(name: str) -> None:
    made = task(name)
    answers = Counter(
        sample.text[answer.begin : answer.end] for sample in made.samples("test", COUNT) for answer in sample.answers
    )
    chance = {
        "flip_flop": 1 / 2,
        "parity": 1 / 2,
        "counting": 1 / 5,
        "contextual_counting": 1 / 5,
        "state_s3": 1 / 6,
        "word_a5": 1 / 2,
        "dyck": 1 / 4,
    }.get(name, 1 / 16)
    assert max(answers.values()) / answers.total() < chance + 0.1
    trained = {sample.text for sample in made.samples(TRAIN, COUNT)}
    again = sum(sample.text in trained for sample in made.samples("test", COUNT)) / COUNT
    assert again <= OFTEN.get(name, 0), again


@pytest.mark.parametrize(("name", "back"), [("reassigned_recall", 1), ("two_back", 2), ("three_back", 3), ("four_back", 4)])
def test_order_decides_between_the_values_of_a_key(name: str, back: int) -> None:
    """Which makes it hard: an answer is no value of its key but the N-th last, and its place is not fixed."""
    other = []
    places = set()
    for sample in task(name).samples("test", COUNT):
        given = sample.text.split(">")[0]
        for answer in sample.answers:
            values = re.findall(f"{sample.text[answer.begin - 1]}([a-z])", given)
            other.append(values[-back] in values[: len(values) - back] + values[len(values) - back + 1 :])
            places.add(answer.begin - answer.key)
            assert len(values) >= 4
    assert sum(other) / len(other) < 0.3  # 26 values, of which a key has six in the mean
    assert len(places) > 10


def test_indirect_indexing_takes_content_and_position() -> None:
    """Which makes it hard: neither the letter nor the shift alone gives the answer's place."""
    samples = list(task("indirect_indexing").samples("test", 1000))
    by_shift: dict[str, set[int]] = {}
    for sample in samples:
        letters, question = sample.text.split(">")
        assert len(set(letters)) == len(letters)
        assert 20 <= len(letters) <= 40
        by_shift.setdefault(question[1:4], set()).add(sample.answers[0].key)
    assert set(map(int, by_shift)) == set(range(-15, 16))
    assert all(len(keys) > 5 for keys in by_shift.values())

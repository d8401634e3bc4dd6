"""Answers of synthetic tasks, solved from the text before them in another way than the generator's, and their splits."""

import itertools
import re
from collections import Counter
from collections.abc import Callable
from functools import partial, reduce
from typing import NamedTuple

import numpy as np
import pytest

from megatape.data.synthetic.state_tracking import A5, S3, S5, StateTracking
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
    for index in range(max(len(a), len(b))):
        a_digit = int(a[index : index + 1] or 0)
        b_digit = int(b[index : index + 1] or 0)
        carry, digit = divmod(a_digit + b_digit + carry, 10)
        total += digits[digit]
    return total + "1" * carry


GROUPS = {"state_s3": S3, "state_a5": A5, "state_s5": S5}


def _matrices(group: type[StateTracking]) -> dict[str, np.ndarray]:
    """Return the permutation matrix of each symbol. Its columns are the images of unit vectors."""
    matrices = {}
    for symbol, permutation in zip(group.alphabet, group.elements, strict=True):
        matrices[symbol] = np.eye(len(permutation), dtype=int)[:, list(permutation)]
    return matrices


MATRICES = {name: _matrices(group) for name, group in GROUPS.items()}


def _product(name: str, text: str) -> str:
    """Multiply the elements of a text as matrices, skipping the answers in between."""
    matrices = MATRICES[name]
    product = reduce(np.matmul, (matrices[symbol] for symbol in reversed(text[::2])))
    return next(symbol for symbol, matrix in matrices.items() if (matrix == product).all())


def _is_identity(word: str) -> str:
    """Return "1" if the cycles of a word move five points back to where they were, applied letter by letter."""
    cycles = {"x": [0, 1, 2], "y": [0, 1, 2, 3, 4], "X": [2, 1, 0], "Y": [4, 3, 2, 1, 0]}
    points = list(range(5))
    for letter in word:
        following = dict(itertools.pairwise([*cycles[letter], cycles[letter][0]]))
        points = [following.get(point, point) for point in points]
    return str(int(points == list(range(5))))


def _values(key: str, text: str) -> list[str]:
    """Return the values that follow a key in a text, in order."""
    return re.findall(f"{key}([a-z])", text)


def _nth_last(back: int, text: str) -> str:
    context, *_ = text.split(">")
    return _values(text[-1], context)[-back]


def _first_value(text: str) -> str:
    return _values(text[-1], text)[0]


def _shifted(text: str) -> str:
    letters, letter, shift = re.fullmatch("([a-zA-Z]+)>([a-zA-Z])([+-][0-9]+)", text).groups()
    return letters[letters.index(letter) + int(shift)]


def _closing(text: str) -> str:
    num_replaced = 1
    while num_replaced > 0:
        text, num_replaced = re.subn(r"\(\)|\[\]|\{\}|<>", "", text)
    return {"(": ")", "[": "]", "{": "}", "<": ">"}[text[-1]]


def _ones(text: str) -> str:
    regions = re.findall(r"\[([01]*)\]", text)
    num_answered = len(text.split(">")[1]) // 3
    num_ones = regions[num_answered].count("1")
    return f"{num_ones:03}"


def _next_visible(text: str) -> str:
    letters, copied = text.replace(".", "").split(">")
    return letters[len(copied)]


# Task -> function from the text before an answer to the answer.
SOLUTIONS: dict[str, Callable[[str], str]] = {
    "flip_flop": lambda text: re.findall("w(.)", text)[-1],
    "copy": lambda text: text.removesuffix(">"),
    "reverse": lambda text: "".join(reversed(text.removesuffix(">"))),
    "sort": _in_order,
    "parity": lambda text: str(int(text[:-1], 2).bit_count() % 2),
    "nth_after_marker": lambda text: text.split("#")[1][int(text[-1]) - 1],
    "recall": _first_value,
    "counting": lambda text: str(text[text.rindex(f"{text[-2]}=") :].count(f"{text[-2]}+")),
    "selective_copy": _next_visible,
    "induction": lambda text: text[text.index(text[-1]) + 1],
    "passkey": lambda text: re.findall(f"{text[-2]}:([0-9]{{3}})", text)[0],
    "addition": _sum,
    "state_s3": partial(_product, "state_s3"),
    "state_a5": partial(_product, "state_a5"),
    "state_s5": partial(_product, "state_s5"),
    "word_a5": lambda text: _is_identity(text.removesuffix("=")),
    "two_back": partial(_nth_last, 2),
    "three_back": partial(_nth_last, 3),
    "four_back": partial(_nth_last, 4),
    "reassigned_recall": partial(_nth_last, 1),
    "indirect_indexing": _shifted,
    "many_keys": _first_value,
    "dyck": _closing,
    "contextual_counting": _ones,
}
# Their answers also depend on the side of the split's map: see test_navigation.py.
WALKS = {"ring", "torus"}


def _distance(text: str) -> int:
    """Return the distance from the first occurrence of the last character to the end."""
    return len(text) - 1 - text.index(text[-1])


def _length_of_input(text: str) -> int:
    return text.index(">")


def _num_elements(text: str) -> int:
    return len(text) // 2


def _most_digits(text: str) -> int:
    """Return the number of digits of the longer operand."""
    return max(map(len, re.findall("[0-9]+(?=[+=])", text)))


# Task -> function from the text up to an answer's first character to the answer's key.
KEYS: dict[str, Callable[[str], int]] = {
    "flip_flop": lambda text: len(text) - 1 - text.rindex("w") - 1,
    "copy": _length_of_input,
    "reverse": _length_of_input,
    "sort": _length_of_input,
    "parity": _length_of_input,
    "nth_after_marker": lambda text: len(text) - 1 - text.index("#") - int(text[-2]),
    "recall": lambda text: len(text) - 2 - text[:-2].rindex(text[-2]),
    "counting": lambda text: len(text) - 1 - text.rindex(f"{text[-3]}="),
    "induction": _distance,
    "passkey": lambda text: len(text) - 3 - text[:-3].rindex(text[-3]),
    "addition": _most_digits,
    "state_s3": _num_elements,
    "state_a5": _num_elements,
    "state_s5": _num_elements,
    "word_a5": lambda text: text.index("="),
    "reassigned_recall": lambda text: len(text) - 1 - text.split(">")[0].rindex(text[-2]) - 1,
    "many_keys": lambda text: len(text) - 2 - text[:-2].rindex(text[-2]),
}


@pytest.mark.parametrize("name", sorted(set(SYNTHETIC_TASKS) - WALKS))
def test_answers_follow_from_the_text_before_them(name: str) -> None:
    synthetic_task = task(name)
    for split in synthetic_task.splits:
        for sample in synthetic_task.samples(split, COUNT // 4):
            for answer in sample.answers:
                expected = SOLUTIONS[name](sample.text[: answer.begin])
                assert sample.text[answer.begin : answer.end] == expected, (split, sample)
                if name in KEYS:
                    expected_key = KEYS[name](sample.text[: answer.begin + 1])
                    assert answer.key == expected_key, (split, sample)


def _blanks(text: str) -> int:
    return text.count(".")


def _few_blanks(text: str) -> int:
    return -_blanks(text)


def _short(text: str) -> int:
    return -len(text)


def _num_capitals(text: str) -> int:
    """Return the number of different keys."""
    return len(set(re.findall("[A-Z]", text)))


class LargerCase(NamedTuple):
    """A number of a text that is larger in every sample of a split than in any of training."""

    name: str
    split: str
    number: Callable[[str], int]


LARGER = [
    LargerCase("copy", "long", len),
    LargerCase("reverse", "long", len),
    LargerCase("sort", "long", len),
    LargerCase("parity", "long", len),
    LargerCase("passkey", "long", len),
    LargerCase("passkey", "many", lambda text: text.count(":")),
    LargerCase("nth_after_marker", "late", lambda text: text.index("#")),
    LargerCase("nth_after_marker", "far", lambda text: text.index("?") - text.index("#")),
    LargerCase("recall", "far", len),
    LargerCase("recall", "many", _num_capitals),
    LargerCase("counting", "long", len),
    LargerCase("counting", "long_sparse", len),
    LargerCase("selective_copy", "dense", _few_blanks),
    LargerCase("selective_copy", "sparse", _blanks),
    LargerCase("selective_copy", "sparser", _blanks),
    LargerCase("induction", "far", _distance),
    LargerCase("induction", "farther", _distance),
    LargerCase("state_s3", "long", len),
    LargerCase("state_a5", "long", len),
    LargerCase("state_s5", "long", len),
    LargerCase("word_a5", "long", len),
    LargerCase("indirect_indexing", "long", len),
    LargerCase("four_back", "long", len),
    LargerCase("four_back", "many", _num_capitals),
    LargerCase("many_keys", "far", len),
    LargerCase("many_keys", "many", lambda text: len(set(re.findall("[^a-z]", text)))),
    LargerCase("addition", "long", _most_digits),
    LargerCase("dyck", "long", len),
    LargerCase("contextual_counting", "long", _length_of_input),
    LargerCase("contextual_counting", "many", lambda text: text.count("[")),
    LargerCase("ring", "dense", _short),
    LargerCase("torus", "sparse", len),
]


@pytest.mark.parametrize(("name", "split", "number"), LARGER, ids=[f"{case.name}-{case.split}" for case in LARGER])
def test_splits_go_beyond_training(name: str, split: str, number: Callable[[str], int]) -> None:
    synthetic_task = task(name)
    largest_in_training = max(number(sample.text) for sample in synthetic_task.samples(TRAIN, COUNT))
    smallest_in_split = min(number(sample.text) for sample in synthetic_task.samples(split, COUNT))
    assert smallest_in_split > largest_in_training


# Task -> probability of its most frequent answer, if above 1/16
CHANCES = {
    "flip_flop": 1 / 2,
    "parity": 1 / 2,
    "counting": 1 / 5,
    "contextual_counting": 1 / 5,
    "state_s3": 1 / 6,
    "word_a5": 1 / 2,
    "dyck": 1 / 4,
}


@pytest.mark.parametrize("name", SYNTHETIC_TASKS)
def test_no_answer_is_frequent(name: str) -> None:
    answers: Counter[str] = Counter()
    for sample in task(name).samples("test", COUNT):
        answers.update(sample.text[answer.begin : answer.end] for answer in sample.answers)
    share_of_most_frequent = max(answers.values()) / answers.total()
    assert share_of_most_frequent < CHANCES.get(name, 1 / 16) + 0.1


# Task -> largest share of repeated texts: strings of one or two letters, small sums, short counts and short bit strings repeat.
MAX_REPEATED = {"copy": 0.1, "reverse": 0.1, "sort": 0.1, "addition": 0.2, "counting": 0.02, "parity": 1, "word_a5": 0.1}


@pytest.mark.parametrize("name", SYNTHETIC_TASKS)
def test_test_texts_are_not_in_training(name: str) -> None:
    synthetic_task = task(name)
    trained = {sample.text for sample in synthetic_task.samples(TRAIN, COUNT)}
    num_repeated = sum(sample.text in trained for sample in synthetic_task.samples("test", COUNT))
    assert num_repeated / COUNT <= MAX_REPEATED.get(name, 0)


@pytest.mark.parametrize(("name", "back"), [("reassigned_recall", 1), ("two_back", 2), ("three_back", 3), ("four_back", 4)])
def test_order_decides_between_the_values_of_a_key(name: str, back: int) -> None:
    """The task is hard only if an answer is rarely another value of its key too, and if its position varies."""
    num_answers = 0
    num_ambiguous = 0
    positions = set()
    for sample in task(name).samples("test", COUNT):
        context, *_ = sample.text.split(">")
        for answer in sample.answers:
            values = _values(sample.text[answer.begin - 1], context)
            assert len(values) >= 4
            index = len(values) - back
            other_values = values[:index] + values[index + 1 :]
            num_answers += 1
            num_ambiguous += values[index] in other_values
            positions.add(answer.begin - answer.key)
    assert num_ambiguous / num_answers < 0.3  # Out of 26 values, a key has six on average.
    assert len(positions) > 10


def test_indirect_indexing_takes_content_and_position() -> None:
    """The task is hard only if neither the letter nor the shift alone gives the answer's position."""
    keys_by_shift: dict[str, set[int]] = {}
    for sample in task("indirect_indexing").samples("test", 1000):
        letters, question = sample.text.split(">")
        assert len(set(letters)) == len(letters)
        assert 20 <= len(letters) <= 40
        keys_by_shift.setdefault(question[1:4], set()).add(sample.answers[0].key)
    assert set(map(int, keys_by_shift)) == set(range(-15, 16))
    for shift, keys in keys_by_shift.items():
        assert len(keys) > 5, shift

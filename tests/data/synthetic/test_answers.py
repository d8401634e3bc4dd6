"""Each synthetic task's answers, found again from the text before them by another way than the generator's, and its splits."""

import re
from collections import Counter
from collections.abc import Callable

import pytest

from megatape.data.synthetic.task import TRAIN
from megatape.registry import SYNTHETIC_TASKS
from tests.helpers.synthetic import task

COUNT = 200


def _in_order(text: str) -> str:
    return "".join(letter * count for letter, count in sorted(Counter(text[:-1]).items()))


def _sum(text: str) -> str:
    carry, digits, total = 0, "0123456789", ""
    a, b = text[:-1].split("+")
    for place in range(max(len(a), len(b))):
        carry, digit = divmod(int(a[place : place + 1] or 0) + int(b[place : place + 1] or 0) + carry, 10)
        total += digits[digit]
    return total + "1" * carry


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
}


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
}


@pytest.mark.parametrize("name", SYNTHETIC_TASKS)
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
    ("addition", "long", lambda text: max(map(len, re.findall("[0-9]+(?=[+=])", text)))),
]


@pytest.mark.parametrize(("name", "split", "number"), LARGER)
def test_splits_go_beyond_training(name: str, split: str, number: Callable[[str], int]) -> None:
    made = task(name)
    trained = [number(sample.text) for sample in made.samples(TRAIN, COUNT)]
    assert min(number(sample.text) for sample in made.samples(split, COUNT)) > max(trained)


@pytest.mark.parametrize("name", SYNTHETIC_TASKS)
def test_no_answer_is_frequent_and_no_text_comes_again(name: str) -> None:
    made = task(name)
    answers = Counter(
        sample.text[answer.begin : answer.end] for sample in made.samples("test", COUNT) for answer in sample.answers
    )
    chance = {"flip_flop": 1 / 2, "parity": 1 / 2, "counting": 1 / 5}.get(name, 1 / 16)
    assert max(answers.values()) / answers.total() < chance + 0.1
    # Strings of one or two letters, small sums, short counts and short strings of bits do come again.
    trained = {sample.text for sample in made.samples(TRAIN, COUNT)}
    again = sum(sample.text in trained for sample in made.samples("test", COUNT)) / COUNT
    assert again <= {"copy": 0.1, "reverse": 0.1, "sort": 0.1, "addition": 0.2, "counting": 0.02, "parity": 1}.get(name, 0), (
        again
    )

"""How models of the suite are scored. Scores of what knows everything, and of what knows little."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor

from megatape.data.synthetic.folder import Encoder
from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask
from megatape.data.training.positions import Positions
from megatape.lab.study.suite.measure import BASELINES, baseline_records, inapplicable, score_split
from megatape.lab.study.suite.records import Record, score_answers
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from tests.helpers.capitals import Capitals, WholeCapitals


class Scripted(torch.nn.Module):
    """Follows letters by their capitals, but `c` by `A`, and never ends a text."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        ids = {letter: encoder.tokenizer.encode(letter)[0] for letter in "abcABC"}
        self.next = torch.zeros(encoder.tokenizer.vocab_size, dtype=torch.long)
        for letter, capital in zip("abc", "ABA", strict=True):
            self.next[ids[letter]] = ids[capital]
        self.encoding = self
        self.lengths: set[int] = set()

    def positions(self, random_offset: bool) -> Positions:
        return Positions()

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        assert tokens.shape == positions.shape
        self.lengths.add(tokens.shape[1])
        return torch.nn.functional.one_hot(self.next[tokens], len(self.next)).float()


@pytest.mark.parametrize("kind", [Capitals, WholeCapitals])
@pytest.mark.parametrize("batch_tokens", [1, 2**13])
def test_answers_are_right_if_every_token_is_the_likeliest(
    kind: type[Capitals], batch_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatape.lab.study.suite.measure.BATCH_TOKENS", batch_tokens)
    task, count = kind("capitals", "tiny"), 40
    model: Any = Scripted(Encoder(task))
    scored = score_split(model, task, "long", count, 1)
    assert model.lengths == {13}
    expected, there = Counter[int](), Counter[int]()
    for sample in task.samples("long", count):
        letters = sample.text[::2]
        # The last answer includes the end token, which the model never gives.
        correct = [letter != "c" and place < len(letters) - 1 for place, letter in enumerate(letters)]
        for place, verdict in enumerate(correct) if kind is Capitals else [(len(letters) - 1, all(correct))]:
            there[place] += 1
            expected[place] += verdict
    assert scored.curve == tuple((key, expected[key], there[key]) for key in sorted(there))
    if kind is Capitals:
        assert 0 < scored.score < 1


def test_hidden_answers_are_scored_and_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by models nor by the bag of tokens, which would know more with them."""
    monkeypatch.setattr(Capitals, "answers_end", False)
    task = Capitals("capitals", "tiny")
    shown: Any = Scripted(Encoder(task))
    read: list[Tensor] = []
    handle = shown.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    plain = score_split(shown, task, "long", 20, 1)
    monkeypatch.setattr(Capitals, "hides_answers", True)
    hidden = score_split(shown, task, "long", 20, 1)
    handle.remove()
    assert hidden == plain and 0 < hidden.score < 1  # what Scripted says depends on the letters alone
    end = Encoder(task).tokenizer.eos_id
    for before, after, sample in zip(*read, task.samples("long", 20), strict=True):
        length = len(sample.text)
        assert torch.equal(before[1:length:2], after[1:length:2]) and (after[2:length:2] == end).all()
        assert not (before[1:length] == end).any()


def test_what_an_encoding_cannot_do_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Capitals("capitals", "tiny")
    monkeypatch.setitem(ENCODINGS, "xpos", replace(ENCODINGS["xpos"], max_positions=12))
    assert inapplicable(task, "test", "xpos") is inapplicable(task, "long", "rope") is None
    reason = inapplicable(task, "long", "xpos")
    assert reason == "not applicable because its samples have 13 tokens and xpos represents at most 12 positions"


class First(SyntheticTask):
    """The letter there are more of, which needs no order, then the first one, which does, then one that can't be known."""

    alphabet = "abcd>"
    axis = "length"
    scored: ClassVar[Literal["answers"]] = "answers"
    answers_end = True

    def make_splits(self, size: Size) -> dict[str, Split]:
        return {"train": Split(11), "test": Split(11), "again": Split(11, "other samples")}

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        letters = "".join(generator.choices("ab", k=7))
        most = max("ab", key=letters.count)
        text = f"{letters}>{most}{letters[0]}{generator.choice('cd')}"
        return SyntheticSample(text, tuple(Answer(7 + key, 8 + key, key) for key in (1, 2, 3)))


def _records(task: SyntheticTask, count: int) -> dict[tuple[str, str], Record]:
    return {(record.row, record.split): record for record in baseline_records(task, count)}


def test_baselines_see_what_they_say() -> None:
    records = _records(First("first", "tiny"), 400)
    assert set(records) == {(row, split) for row in BASELINES for split in ("test", "again")}
    for split in ("test", "again"):
        right = {row: {key: count / asked for key, count, asked in records[row, split].curve} for row in BASELINES}
        assert right["oracle"] == {1: 1, 2: 1, 3: 1} and records["oracle", split].score == 1
        assert max(right["majority"].values()) < 0.6
        # The letter there are more of is the first one's in 66% of all strings of 7.
        assert right["bag of tokens"][1] > 0.95 and 0.55 < right["bag of tokens"][2] < 0.75
        assert 0.4 < right["bag of tokens"][3] < 0.6
        assert all(records[row, split].asked == 1200 for row in BASELINES)


def test_baselines_are_deterministic() -> None:
    assert _records(First("first", "tiny"), 50) == _records(First("first", "tiny"), 50)


@pytest.mark.parametrize(
    ("scored", "curve"), [("answers", ((1, 1, 2), (2, 0, 1), (3, 1, 1))), ("samples", ((2, 0, 1), (3, 1, 1)))]
)
def test_an_answer_is_right_if_all_its_tokens_are(
    scored: Literal["answers", "samples"], curve: tuple[tuple[int, int, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(First, "scored", scored)
    samples = [
        SyntheticSample("aabab", (Answer(1, 3, 1), Answer(4, 5, 2))),
        SyntheticSample("aaba", (Answer(1, 2, 1), Answer(3, 4, 3))),
    ]
    # The first: both tokens, the last token, no end. The second: one that is wrong only where answers count, and all else.
    right = [[True, True, True, False], [scored == "samples", True, True]]
    score, asked, found = score_answers(First("first", "tiny"), samples, right)
    assert found == curve and asked == sum(each[2] for each in curve) and score == sum(each[1] for each in curve) / asked


@pytest.mark.slow
@pytest.mark.parametrize("name", SYNTHETIC_TASKS)
def test_no_task_leaks_its_answers(name: str) -> None:
    """Little is known from how often each token precedes an answer; from nothing but its place, nothing."""
    made = SYNTHETIC_TASKS[name].load()(name, "tiny")
    records = _records(made, 300)
    # Several bits were written; a value is one of those given, of which some were asked for before; the `+` of two variables.
    bag = {"flip_flop": 0.7, "parity": 0.6, "recall": 0.35, "selective_copy": 0.25, "counting": 0.4, "state_s3": 0.2}
    bag |= {"word_a5": 0.6} | dict.fromkeys(("reassigned_recall", "two_back", "three_back", "four_back"), 0.3)
    # The symbols seen on a walk; the kinds of brackets that are open; few ones in many regions.
    bag |= {"ring": 0.5, "torus": 0.3, "dyck": 0.55, "contextual_counting": 0.3}
    guess = {"flip_flop": 0.6, "parity": 0.6, "counting": 0.25, "state_s3": 0.2, "word_a5": 0.6}
    guess |= {"dyck": 0.3, "contextual_counting": 0.3}
    for split in made.tests:
        assert records["oracle", split].score == 1
        scores = [records[row, split].score for row in ("majority", "bag of tokens")]
        assert scores[0] is not None and scores[0] < guess.get(name, 0.1), split
        assert scores[1] is not None and scores[1] < bag.get(name, 0.15), split

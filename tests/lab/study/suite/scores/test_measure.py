"""Scores of models of the suite."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from megatape.data.synthetic.folder import Encoder
from megatape.data.training.positions import Positions
from megatape.lab.study.suite.scores.measure import inapplicable, score_split
from megatape.registry import ENCODINGS
from tests.helpers.lab.capitals import Capitals, WholeCapitals


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
def test_answer_is_right_if_every_token_is_the_likeliest(kind: type[Capitals], batch_tokens: int) -> None:
    task = kind("capitals", "tiny")
    count = 40
    model: Any = Scripted(Encoder(task))
    scored = score_split(model, task, "long", count, 1, batch_tokens)
    assert model.lengths == {13}
    expected = Counter[int]()
    there = Counter[int]()
    for sample in task.samples("long", count):
        letters = sample.text[::2]
        # The last answer includes the end token, which the model never gives.
        correct = [letter != "c" and place < len(letters) - 1 for place, letter in enumerate(letters)]
        for place, verdict in enumerate(correct) if kind is Capitals else [(len(letters) - 1, all(correct))]:
            there[place] += 1
            expected[place] += verdict
    assert scored.by_key == tuple((key, expected[key], there[key]) for key in sorted(there))
    if kind is Capitals:
        assert 0 < scored.score < 1


def test_hidden_answers_are_scored_but_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the model nor the bag of tokens reads them. The latter would know more with them."""
    monkeypatch.setattr(Capitals, "answers_end", False)
    task = Capitals("capitals", "tiny")
    shown: Any = Scripted(Encoder(task))
    read: list[Tensor] = []
    handle = shown.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    plain = score_split(shown, task, "long", 20, 1)
    monkeypatch.setattr(Capitals, "hides_answers", True)
    hidden = score_split(shown, task, "long", 20, 1)
    handle.remove()
    assert hidden == plain
    assert 0 < hidden.score < 1
    end = Encoder(task).tokenizer.eos_id
    for before, after, sample in zip(*read, task.samples("long", 20), strict=True):
        length = len(sample.text)
        assert torch.equal(before[1:length:2], after[1:length:2])
        assert (after[2:length:2] == end).all()
        assert not (before[1:length] == end).any()


def test_unsupported_split_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Capitals("capitals", "tiny")
    monkeypatch.setitem(ENCODINGS, "xpos", replace(ENCODINGS["xpos"], max_positions=12))
    assert inapplicable(task, "test", "xpos") is inapplicable(task, "long", "rope") is None
    reason = inapplicable(task, "long", "xpos")
    assert reason == "not applicable because its samples have 13 tokens and xpos represents at most 12 positions"

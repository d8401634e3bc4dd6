"""Scores of models of the suite."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from megatape.data.synthetic.folder import Encoder
from megatape.data.synthetic.task import SyntheticSample
from megatape.data.training.batches.positions import Positions
from megatape.lab.study.suite.scores.answers import KeyCounts
from megatape.lab.study.suite.scores.measure import inapplicable, score_split
from megatape.registry import ENCODINGS
from tests.helpers.lab.capitals import Capitals, WholeCapitals


class Scripted(torch.nn.Module):
    """Model that continues letters by their capitals, but `c` by `A`, and never ends a text.

    Attributes:
        lengths: Lengths of the sequences it was called with.
    """

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


NUM_SAMPLES = 40


def _right_letters(sample: SyntheticSample) -> list[bool]:
    """Return whether `Scripted` answers each letter of a sample right."""
    letters = sample.text[::2]
    right = [letter != "c" for letter in letters]
    right[-1] = False  # the last answer includes the end token, which the model never predicts
    return right


def _key_counts(right: dict[int, list[bool]]) -> tuple[KeyCounts, ...]:
    return tuple(KeyCounts(key, sum(right[key]), len(right[key])) for key in sorted(right))


@pytest.mark.parametrize("batch_tokens", [1, 2**13])
def test_answer_is_right_if_every_token_is_the_likeliest(batch_tokens: int) -> None:
    task = Capitals("capitals", "tiny")
    model: Any = Scripted(Encoder(task))
    right = defaultdict[int, list[bool]](list)
    for sample in task.samples("long", NUM_SAMPLES):
        for key, is_right in enumerate(_right_letters(sample)):
            right[key].append(is_right)

    counts = score_split(model, task, "long", NUM_SAMPLES, 1, batch_tokens)

    assert model.lengths == {13}
    assert counts.by_key == _key_counts(right)
    assert 0 < counts.score < 1


@pytest.mark.parametrize("batch_tokens", [1, 2**13])
def test_sample_is_right_if_all_its_answers_are(batch_tokens: int) -> None:
    task = WholeCapitals("capitals", "tiny")
    model: Any = Scripted(Encoder(task))
    right = defaultdict[int, list[bool]](list)
    for sample in task.samples("long", NUM_SAMPLES):
        right_letters = _right_letters(sample)
        last_key = len(right_letters) - 1
        right[last_key].append(all(right_letters))

    counts = score_split(model, task, "long", NUM_SAMPLES, 1, batch_tokens)

    assert model.lengths == {13}
    assert counts.by_key == _key_counts(right)


def test_hidden_answers_are_scored_but_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model must not see the answers of a task that hides them, or it would know more."""
    monkeypatch.setattr(Capitals, "answers_end", False)
    task = Capitals("capitals", "tiny")
    model: Any = Scripted(Encoder(task))
    inputs: list[Tensor] = []
    model.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))

    plain = score_split(model, task, "long", 20, 1)
    monkeypatch.setattr(Capitals, "hides_answers", True)
    hidden = score_split(model, task, "long", 20, 1)

    assert hidden == plain
    assert 0 < hidden.score < 1
    plain_inputs, hidden_inputs = inputs
    end = Encoder(task).tokenizer.eos_id
    for plain_tokens, hidden_tokens, sample in zip(plain_inputs, hidden_inputs, task.samples("long", 20), strict=True):
        letters = slice(1, len(sample.text), 2)
        answers = slice(2, len(sample.text), 2)
        assert torch.equal(plain_tokens[letters], hidden_tokens[letters])
        assert set(hidden_tokens[answers].tolist()) <= {end}
        assert end not in plain_tokens[1 : len(sample.text)].tolist()


def test_unsupported_split_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Capitals("capitals", "tiny")
    monkeypatch.setitem(ENCODINGS, "xpos", replace(ENCODINGS["xpos"], max_positions=12))

    reason = inapplicable(task, "long", "xpos")

    assert reason == "not applicable because its samples have 13 tokens and xpos represents at most 12 positions"
    assert inapplicable(task, "test", "xpos") is None
    assert inapplicable(task, "long", "rope") is None

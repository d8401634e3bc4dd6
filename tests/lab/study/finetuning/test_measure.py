"""Evaluating a run of `finetune`: passkeys by length."""

from types import SimpleNamespace

import pytest

from megatape.hf.loading.loaded_model import LoadedModel
from megatape.lab.study.finetuning import measure
from megatape.lab.tasks.passkey.results import PasskeyScores, Score
from megatape.lab.tasks.passkey.task import Passkey

# Correct answers to four questions each, by length and depth.
CORRECT = {(32, 0.0): 4, (32, 1.0): 2, (64, 0.0): 1, (64, 1.0): 0}


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    """Model answering as CORRECT says. Its shortest question has 20 tokens."""
    model = LoadedModel("none", SimpleNamespace(config=None), None)

    def evaluate(task: Passkey, evaluated_model: LoadedModel) -> PasskeyScores:
        assert evaluated_model == model
        assert task == Passkey("grid", (32, 64), 4)
        scores = []
        for (length, depth), correct in CORRECT.items():
            scores.append(Score(length, depth, 1.0, correct, 4))
        return PasskeyScores("grid", scores)

    monkeypatch.setattr(measure, "grid_tokens", lambda model: 20)
    monkeypatch.setattr(measure, "evaluate", evaluate)
    return model


def test_passkey_skips_lengths_without_room(loaded: LoadedModel) -> None:
    assert measure.passkey(loaded, [16, 32, 64]) == {32: 75.0, 64: 12.5}


def test_passkey_without_any_room(loaded: LoadedModel) -> None:
    assert measure.passkey(loaded, [8, 16]) == {}

"""Evaluation of a run of `finetune`: passkeys by length."""

from types import SimpleNamespace

import pytest

from megatape.hf.loading.loaded_model import LoadedModel
from megatape.lab.study.finetuning import measure as measure_extension
from megatape.lab.tasks.passkey.results import PasskeyScores, Score
from megatape.lab.tasks.passkey.task import Passkey


def test_passkey_skips_lengths_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortest question has 20 tokens. The model answers some questions of each length and depth."""
    loaded = LoadedModel("none", SimpleNamespace(config=None), None)

    def evaluate(task: Passkey, model: LoadedModel) -> PasskeyScores:
        assert (model, task) == (loaded, Passkey("grid", (32, 64), 4))
        cells = [(32, 0.0, 4), (32, 1.0, 2), (64, 0.0, 1), (64, 1.0, 0)]
        return PasskeyScores("grid", [Score(length, depth, 1.0, correct, 4) for length, depth, correct in cells])

    monkeypatch.setattr(measure_extension, "grid_tokens", lambda model: 20)
    monkeypatch.setattr(measure_extension, "evaluate", evaluate)
    assert measure_extension.passkey(loaded, [16, 32, 64]) == {32: 75.0, 64: 12.5}
    assert measure_extension.passkey(loaded, [8, 16]) == {}

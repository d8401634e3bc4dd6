"""Limits for the state that callbacks store in checkpoints."""

from pathlib import Path
from typing import Any

import pytest

from megatape.run_folder import RunFolder
from megatape.training.callbacks.callback import Callback
from megatape.training.callbacks.collection import MAX_STATE_BYTES, MAX_STATE_DEPTH, Callbacks
from megatape.utils.files.json_files import json_content, read_json
from tests.helpers.runs.raw_config import parse
from tests.helpers.runs.run_context import make_context


def nested(depth: int) -> dict[str, Any]:
    """Return a JSON value with this many levels."""
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"inner": value}
    return value


def test_unreadable_states_are_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """States with too many levels or bytes, alone or together, are dropped. The others are kept, and a warning comes once."""
    states = {
        "deepest": nested(MAX_STATE_DEPTH),
        "too deep": nested(MAX_STATE_DEPTH + 1),
        "large": {"text": "x" * (MAX_STATE_BYTES // 2)},
        "too large": {"text": "x" * MAX_STATE_BYTES},
        "too large beside the others": {"text": "x" * (MAX_STATE_BYTES // 2)},
        "empty": {},
        "small": {"steps": (1, 2)},
    }

    class Keeping(Callback):
        def __init__(self, state: dict[str, Any]) -> None:
            super().__init__(context)
            self.state = state

        def state_dict(self) -> dict[str, Any]:
            return self.state

    context = make_context(parse(), RunFolder(tmp_path))
    callbacks = Callbacks({name: Keeping(state) for name, state in states.items()}, context.log)
    for _ in range(2):
        assert list(callbacks.state_dict()) == ["deepest", "large", "small"]
    told = capsys.readouterr().err
    assert told.count("warning: ") == 3
    assert f"callback too deep (nested more than {MAX_STATE_DEPTH} levels deep)" in told
    assert "callback too large (it would have 33," in told
    path = tmp_path / "state.json"
    path.write_bytes(json_content({"callbacks": callbacks.state_dict()}, "state.json"))
    assert list(read_json(path)["callbacks"]) == ["deepest", "large", "small"]

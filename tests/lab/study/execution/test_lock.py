"""Locking a study's folder."""

import threading
from pathlib import Path

import pytest

from megatape.lab.study.execution.lock import locked_study


def test_second_study_is_refused(tmp_path: Path) -> None:
    with (
        locked_study(tmp_path),
        pytest.raises(ValueError, match="is in use by another study, .*choose another folder"),
        locked_study(tmp_path),
    ):
        pass


def test_waiting_study_warns_and_then_enters(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    entered = threading.Event()

    def enter() -> None:
        with locked_study(tmp_path, wait=True):
            entered.set()

    with locked_study(tmp_path):
        threading.Thread(target=enter, daemon=True).start()
        assert not entered.wait(0.2)
        assert f"{tmp_path} is in use by another study" in capfd.readouterr().err
    assert entered.wait(10), "it still waits for a lock that was released"

"""Waiting for a condition ends when it holds, when the time is up, or when nothing can make it true any more."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.processes.waiting import wait_until


def test_waiting_ends_once_the_condition_holds() -> None:
    answers = [False, False, True]

    wait_until(lambda: answers.pop(0), "the third answer", 60, interval=0.0)

    assert answers == []


def test_an_expired_timeout_is_described() -> None:
    with pytest.raises(AssertionError, match=r"(?s)the first step: not within 0\.05 s .*the log"):
        wait_until(lambda: False, "the first step", 0.05, details=lambda: "the log", interval=0.01)


def test_an_exited_process_ends_the_waiting() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(3)"])

    with pytest.raises(AssertionError, match="the first step: the process exited before, with status 3"):
        wait_until(lambda: False, "the first step", 600, process=process)


def test_condition_met_just_before_exit_counts(tmp_path: Path) -> None:
    file = tmp_path / "file"
    process = subprocess.Popen([sys.executable, "-c", f"open({str(file)!r}, 'w')"])
    process.wait()

    wait_until(file.exists, "the file", 600, process=process)

"""A process of its own: its answers, its errors, and its end."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatape.data.io.isolated import IsolatedProcess, ProcessEnded
from tests.helpers.processes.planted import planted_that_ran


def answers(count: int, end: str) -> Iterator[int]:
    yield from range(count)
    if end == "error":
        raise ValueError("no more")
    if end == "signal":
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.timeout(60)
def test_an_error_ends_a_request_and_a_signal_the_process() -> None:
    """After an error the next request has its own answers."""
    process = IsolatedProcess(answers)
    assert list(process.ask(3, "")) == [0, 1, 2]
    asked = process.ask(2, "error")
    assert [next(asked), next(asked)] == [0, 1]
    with pytest.raises(ValueError, match="no more"):
        next(asked)
    assert list(process.ask(1, "")) == [0]
    with pytest.raises(ProcessEnded, match="ended by SIGKILL") as ended:
        list(process.ask(2, "signal"))
    assert ended.value.status == -signal.SIGKILL


def safe_path() -> Iterator[str]:
    yield os.environ["PYTHONSAFEPATH"]


def test_no_module_of_the_current_directory_runs(planted_folder: Path) -> None:
    process = IsolatedProcess(safe_path)
    assert list(process.ask()) == ["1"]
    process.end()
    assert planted_that_ran(planted_folder) == ""
    assert "PYTHONSAFEPATH" not in os.environ, "the environment of a program that uses the package stays as it is"

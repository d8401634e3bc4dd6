"""A child process answering requests: its answers, its errors, and its death."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatape.data.io.isolated import IsolatedProcess, ProcessEnded
from tests.helpers.processes.planted import planted_that_ran


def count(number: int, end: str) -> Iterator[int]:
    """Yield numbers. Then raise an error or die, if `end` says so."""
    yield from range(number)
    if end == "error":
        raise ValueError("no more")
    if end == "signal":
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.timeout(60)
def test_an_error_ends_a_request_but_not_the_process() -> None:
    """The next request has its own answers."""
    process = IsolatedProcess(count)
    assert list(process.ask(3, "")) == [0, 1, 2]

    answers = process.ask(2, "error")
    assert next(answers) == 0
    assert next(answers) == 1
    with pytest.raises(ValueError, match="no more"):
        next(answers)

    assert list(process.ask(1, "")) == [0]


@pytest.mark.timeout(60)
def test_a_killed_process_is_an_error() -> None:
    process = IsolatedProcess(count)

    with pytest.raises(ProcessEnded, match="ended by SIGKILL") as error:
        list(process.ask(2, "signal"))

    assert error.value.status == -signal.SIGKILL


def safe_path() -> Iterator[str]:
    yield os.environ["PYTHONSAFEPATH"]


def test_no_module_of_the_current_directory_runs(planted_folder: Path) -> None:
    """The environment of the parent process stays as it is."""
    process = IsolatedProcess(safe_path)

    assert list(process.ask()) == ["1"]

    process.end()
    assert planted_that_ran(planted_folder) == ""
    assert "PYTHONSAFEPATH" not in os.environ

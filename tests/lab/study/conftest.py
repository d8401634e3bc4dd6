"""Replacing studies' child processes by functions, and by forks needing no imports."""

import importlib
from pathlib import Path

import pytest

from megatape.lab.study.execution.children import Children
from tests.helpers.processes.workers import Workers


@pytest.fixture
def measured_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure in this process, not in a child process."""
    start = Children.run

    def run(self: Children, words: list[str], environment: dict[str, str], log: Path) -> int:
        if "pretrain" in words or "evaluate" in words:
            return start(self, words, environment, log)
        module = words[3]  # python -P PROGRAM MODULE ARGUMENT ...
        arguments = words[4:]
        code: int = importlib.import_module(module).main(arguments)
        return code

    monkeypatch.setattr(Children, "run", run)


@pytest.fixture
def quick_children(measured_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure in this process, training and evaluating in forks of the test server."""
    measure = Children.run

    def run(self: Children, words: list[str], environment: dict[str, str], log: Path) -> int:
        commands = [word for word in words if word in ("pretrain", "evaluate")]
        if not commands:
            return measure(self, words, environment, log)
        arguments = words[words.index(commands[0]) :]
        with Workers(arguments, 1, log.parent / "workers") as workers:
            (status,) = workers.statuses()
            log.write_text(workers.logs())
        assert status is not None
        return status

    monkeypatch.setattr(Children, "run", run)

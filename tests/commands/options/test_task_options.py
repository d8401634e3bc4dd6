"""Options that several tasks share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from megatape.commands.options.task_options import build_task, options_of
from megatape.entries import Entry
from megatape.lab.tasks.registry import TASKS
from megatape.utils.values.options import read_options


@dataclass(frozen=True)
class Few:
    """A task.

    Attributes:
        trials: questions for each length
        data: data directory
    """

    data: Path
    trials: int = 2


@dataclass(frozen=True)
class Many:
    """Another task with the same options.

    Attributes:
        trials: questions in total
        data: data directory
    """

    data: Path
    trials: int = 100


@pytest.fixture(autouse=True)
def two_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "few", Entry(f"{__name__}:Few", "few questions"))
    monkeypatch.setitem(TASKS, "many", Entry(f"{__name__}:Many", "many questions"))


@pytest.mark.parametrize(
    ("given", "trials"),
    [
        ({}, (2, 100)),
        ({"trials": "7"}, (7, 7)),
        ({"few_trials": "7"}, (7, 100)),
        ({"trials": "7", "many_trials": "8"}, (7, 8)),
    ],
)
@pytest.mark.parametrize("names", [["few", "many"], ["many", "few"]])
def test_each_task_has_its_own_default(names: list[str], given: dict[str, str], trials: tuple[int, int]) -> None:
    """The last task's default was that of all."""
    values: dict[str, Any] = {"models": ["exported"], "output": "out", "data": "text"}
    options = read_options(options_of(names), values | given)

    few, many = [build_task(name, options) for name in ("few", "many")]

    assert (few.trials, many.trials) == trials
    assert few.data == many.data == Path("text")


def test_help_has_the_descriptions_of_all_tasks() -> None:
    described = options_of(["few", "many"]).model_fields

    text = "few: questions for each length (default 2); many: questions in total (default 100)"
    assert described["trials"].description == text
    assert described["data"].description == "data directory"
    assert options_of(["many"]).model_fields["trials"].description == "questions in total"

"""Tasks by name, tasks of a user, and options for one of several tasks."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image

from megatape.entries import Entry
from megatape.lab.tasks.engine.model import EvaluationModel, ModelOutline
from megatape.lab.tasks.engine.result import Measure
from megatape.lab.tasks.engine.task import Task
from megatape.lab.tasks.registry import TASKS
from megatape.utils.values.options import Listed
from tests.helpers.lab.evaluations import both_tasks
from tests.helpers.processes.command import Command


@dataclass(frozen=True)
class Length:
    """Number of tokens in a word."""

    word: str
    num_tokens: int


@dataclass(frozen=True)
class Lengths:
    """Results of the task below."""

    lengths: list[int]
    summary = "lengths"

    @property
    def measures(self) -> list[Measure]:
        return [Measure("tokens", max(self.lengths), None, len(self.lengths))]

    def describe(self) -> dict[str, Any]:
        return vars(self)

    def draw(self, figure: Figure) -> None:
        figure.add_subplot().plot(self.lengths)


@dataclass(frozen=True)
class WordLengths(Task[str, Length, Lengths]):
    """Task of a user: how many tokens words have.

    Attributes:
        words: words to encode
    """

    words: Listed[str]
    prediction = Length

    def batches(self, model: ModelOutline) -> list[list[str]]:
        return [[word] for word in self.words]

    def run(self, model: EvaluationModel, batch: list[str]) -> list[Length]:
        lengths = []
        for word in batch:
            ids = model.tokenizer(word, add_special_tokens=False)["input_ids"]
            lengths.append(Length(word, len(ids)))
        return lengths

    def result(self, predictions: list[Length]) -> Lengths:
        return Lengths([each.num_tokens for each in predictions])


def test_own_task(command: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class and a line of the registry are enough."""
    monkeypatch.setitem(TASKS, "word-lengths", Entry(f"{__name__}:WordLengths", "lengths of words"))

    status, printed, errors = command("evaluate", "word-lengths", model, "--words", "a,aaaa", "--output", tmp_path / "out")

    assert status == 0, errors
    assert "| exported" in printed
    assert "tokens" in printed
    folder = tmp_path / "out" / "word-lengths" / model.name
    short, long = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert short["word"] == "a"
    assert long["word"] == "aaaa"
    assert short["num_tokens"] < long["num_tokens"]
    assert _corner_color(folder / "word-lengths.png") == (255, 255, 255)
    assert _corner_color(folder / "word-lengths-dark.png") == (0x12, 0x16, 0x1C)


def _corner_color(picture: Path) -> Any:
    return Image.open(picture).convert("RGB").getpixel((0, 0))


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ("perplexity,perplexity", "'perplexity' is given twice"),
        ("perplexity,passkeys", "did you mean passkey? choose one of perplexity, passkey"),
        ("", "choose one of perplexity, passkey"),
        ("mine", "to use a task of your own, give its file with --import before the tasks"),
    ],
)
def test_unknown_tasks_are_refused(command: Command, tasks: str, message: str) -> None:
    status, _, errors = command("evaluate", tasks, "a", "--output", "b")

    assert status == 2
    assert message in errors


def _help(command: Command, capfd: pytest.CaptureFixture[str], tasks: str) -> str:
    with pytest.raises(SystemExit):
        command("evaluate", tasks, "--help")
    return capfd.readouterr().out


def test_all_tasks_share_their_options(command: Command, capfd: pytest.CaptureFixture[str]) -> None:
    assert "--lengths" in _help(command, capfd, ",".join(TASKS))


def test_option_for_one_task_leaves_the_others(command: Command, data_directory: Path, long: Path, tmp_path: Path) -> None:
    """`--passkey-lengths` is for passkey alone, and other tasks use `--lengths`."""
    out = tmp_path / "out"

    status, printed, errors = command(*both_tasks(data_directory, out, long), "--passkey-lengths", 400)

    assert status == 0, errors
    assert "examples for long: perplexity 7 in 1 batches, passkey 5 in " in printed
    perplexity = json.loads((out / "perplexity" / "long" / "results.json").read_text())
    passkey = json.loads((out / "passkey" / "long" / "results.json").read_text())
    assert perplexity["settings"]["lengths"] == [64]
    assert passkey["settings"]["lengths"] == [400]


def test_misspelled_option_for_one_task_is_refused(command: Command, data_directory: Path, long: Path, tmp_path: Path) -> None:
    status, _, errors = command(*both_tasks(data_directory, tmp_path / "out", long), "--pasky-lengths", 400)

    assert status == 2
    assert "--pasky-lengths is not an option: did you mean --passkey-lengths?" in errors


def test_help_lists_options_for_one_task_if_there_are_several(command: Command, capfd: pytest.CaptureFixture[str]) -> None:
    assert "--passkey-lengths" in _help(command, capfd, "perplexity,passkey")
    assert "--passkey-lengths" not in _help(command, capfd, "passkey")

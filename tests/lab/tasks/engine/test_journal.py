"""A stopped evaluation resumes. A folder with results of other settings, models or texts is refused."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from megatape.lab.tasks.perplexity.task import Perplexity
from tests.helpers.lab.evaluations import QUICK, Evaluate, assert_evaluated, content, interrupt
from tests.helpers.processes.command import Command, assert_refused

# Number of batches with the settings LENGTHS, 3 + 6: at most 4096 tokens each, of 359 windows of each length.
NUM_BATCHES = 3 + 6
# Changes making lines invalid
FORGED: list[dict[str, Any]] = [
    {"losses": "a"},
    {"losses": [float("nan")]},
    {"length": None},
    {"begin": 10**30},
    {"scored": 10**15},
    {"size": 1e300},
    {"example": 3},
    {"sha256": ""},
]
# Lines without a valid prediction
FOREIGN: list[Any] = [[], 7, None, {"example": []}]


class StoppingTask:
    """Replacement of `Perplexity.run` that is interrupted after each batch.

    Attributes:
        predicted: Length and beginning of the batches that were predicted.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.predicted: list[tuple[int, int]] = []
        self._is_first = True
        run = Perplexity.run

        def run_or_stop(task: Perplexity, model: Any, batch: Any) -> Any:
            if not self._is_first:
                raise KeyboardInterrupt
            self._is_first = False
            self.predicted.append((batch[0].length, batch[0].begin))
            return run(task, model, batch)

        monkeypatch.setattr(Perplexity, "run", run_or_stop)

    def restart(self) -> None:
        """Predict one batch before the next interruption."""
        self._is_first = True


def test_stopped_evaluation_resumes_with_the_same_results(
    evaluate: Evaluate, model: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluation is stopped after every batch, each time with a torn last line. Every batch is predicted once."""
    assert_evaluated(evaluate(model))
    expected = content(folder)
    assert len(expected["samples.jsonl"].splitlines()) == 2 * len(range(0, 1500 - 64, 4))
    shutil.rmtree(tmp_path / "out")
    task = StoppingTask(monkeypatch)

    for _ in range(NUM_BATCHES - 1):
        task.restart()
        status, _, _ = evaluate(model)
        assert status == 130
        assert not (folder / "results.json").exists()
        with (folder / "samples-0.jsonl").open("a") as file:
            file.write('\n{"example": 0, "length')
    task.restart()
    assert_evaluated(evaluate(model))

    assert content(folder) == expected
    assert len(task.predicted) == NUM_BATCHES
    assert len(set(task.predicted)) == NUM_BATCHES


def test_finished_evaluation_predicts_nothing(
    evaluate: Evaluate, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_evaluated(evaluate(model, settings=QUICK))
    expected = content(folder)
    monkeypatch.setattr(Perplexity, "run", interrupt)

    assert_evaluated(evaluate(model, settings=QUICK))

    assert content(folder) == expected


def test_altered_predictions_are_computed_again(evaluate: Evaluate, model: Path, folder: Path) -> None:
    assert_evaluated(evaluate(model, settings=QUICK))
    expected = content(folder)
    lines = expected["samples.jsonl"].decode().splitlines()
    altered = []
    for line, change in zip(lines, FORGED, strict=False):
        altered.append(json.dumps(json.loads(line) | change))
    altered += [json.dumps(line) for line in FOREIGN]
    (folder / "samples.jsonl").write_text("\n".join([*altered, *lines[len(FORGED) :]]))

    assert_evaluated(evaluate(model, settings=QUICK))

    assert content(folder) == expected


def test_lines_of_an_earlier_version_are_computed_again(evaluate: Evaluate, model: Path, folder: Path) -> None:
    """Lines of the earlier version lack a field. The settings are those of the earlier version."""
    assert_evaluated(evaluate(model, settings=QUICK))
    expected = content(folder)
    lines = [json.loads(line) for line in expected["samples.jsonl"].splitlines()]
    for line in lines[::2]:
        del line["text_bytes"]
        del line["sha256"]
        line["sha256"] = hashlib.sha256(json.dumps(line).encode()).hexdigest()
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    assert_evaluated(evaluate(model, settings=QUICK))

    assert content(folder) == expected


def test_other_settings_are_refused(evaluate: Evaluate, model: Path, folder: Path) -> None:
    assert_evaluated(evaluate(model, settings=QUICK))
    before = content(folder)

    assert_refused(
        evaluate(model, settings=("--lengths", "32", "--max-tokens", "600")),
        "settings.max_tokens is 500 there and 600 here: choose another --output",
    )
    assert content(folder) == before


def test_another_model_of_the_same_name_is_refused(evaluate: Evaluate, model: Path, folder: Path, tmp_path: Path) -> None:
    assert_evaluated(evaluate(model, settings=QUICK))
    before = content(folder)
    changed = tmp_path / "changed" / model.name
    shutil.copytree(model, changed)
    (changed / "generation_config.json").write_text("{}")

    assert_refused(evaluate(changed, settings=QUICK), f'model.name is "{model}" there and "{changed}" here')
    assert content(folder) == before


def test_other_settings_replace_an_evaluation_without_predictions(evaluate: Evaluate, model: Path, folder: Path) -> None:
    """An evaluation without predictions holds nothing that results of other settings could be mixed with."""
    assert_evaluated(evaluate(model, settings=QUICK))
    (folder / "samples.jsonl").unlink()

    assert_evaluated(evaluate(model, settings=("--lengths", "32", "--max-tokens", "600")))


def test_malformed_settings_are_refused(evaluate: Evaluate, model: Path, folder: Path) -> None:
    assert_evaluated(evaluate(model, settings=QUICK))
    (folder / "settings.json").write_text("no JSON")

    _, _, errors = evaluate(model, settings=QUICK)

    assert "describes no evaluation" in errors


def test_another_text_is_refused(command: Command, model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    words = ("evaluate", "perplexity", model, "--data", text, "--lengths", "32", "--output", tmp_path / "out")
    text.write_text("some words. " * 40)
    assert_evaluated(command(*words))
    text.write_text("other words. " * 40)

    assert_refused(command(*words), "settings: examples.")

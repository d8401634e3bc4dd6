"""Scores of files of predictions, and errors in the files."""

import json
from pathlib import Path

import pytest

from tests.helpers.lab.scrolls import OFFICIAL, PREDICTIONS, lines, write_set
from tests.helpers.processes.command import Command


@pytest.mark.parametrize("name", OFFICIAL)
def test_the_official_examples(name: str, command: Command, tmp_path: Path) -> None:
    write_set(tmp_path / "sets", name, lines())
    predictions = tmp_path / "predictions.json"
    predictions.write_text(json.dumps({f"q{number}": text for number, text in reversed(list(enumerate(PREDICTIONS)))}))
    status, printed, errors = command("scores", predictions, "--scrolls", tmp_path / "sets", "--set", name)
    assert status == 0, errors
    first, *rows = printed.splitlines()
    assert first == f"{name}, validation: 3 questions"
    assert {row.split()[0]: float(row.split()[1]) for row in rows} == OFFICIAL[name]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"q0": "a", "q2": "c"}', "of 3 questions, 1 id (q1) missing: predict this set, and all of it"),
        ('{"x": "a"}', "of 3 questions, 3 ids (q0, q1, q2) missing and 1 id (x) not in the set"),
        (
            '{"q0": "a", "q1": "b", "q2": "c", "w": "", "x": "", "y": "", "z": ""}',
            "of 3 questions, 4 ids (w, x, y, ...) not in the set",
        ),
        ('{"q0": "a", "q1": "b", "q0": "c", "q2": "c"}', "no object {id: answer} of one text for each id (duplicate key q0"),
        (
            '{"q0": "a", "q1": ["b"], "q2": 1}',
            "no object {id: answer} of one text for each id (q1: must be a valid string",
        ),
        ('["a"]', "no object {id: answer} of one text for each id (must be an object"),
        ('{"q0": ', "no object {id: answer} of one text for each id (Expecting value"),
    ],
)
def test_bad_predictions(content: str, message: str, command: Command, tmp_path: Path) -> None:
    write_set(tmp_path / "sets", "qasper", lines())
    path = tmp_path / "predictions.json"
    path.write_text(content)
    status, printed, errors = command("scores", path, "--scrolls", tmp_path / "sets", "--set", "qasper")
    assert (status, printed) == (2, "") and f"{path}: {message}" in errors

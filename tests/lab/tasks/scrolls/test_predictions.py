"""Scores of files of predictions, and errors in the files."""

import json
from pathlib import Path

import pytest

from tests.helpers.lab.scrolls import OFFICIAL, PREDICTIONS, lines, write_set
from tests.helpers.processes.command import Command


@pytest.mark.parametrize("name", OFFICIAL)
def test_predictions_have_the_official_scores(name: str, command: Command, tmp_path: Path) -> None:
    """The predictions are in another order than the questions."""
    write_set(tmp_path / "sets", name, lines())
    file = tmp_path / "predictions.json"
    predictions = {"q2": PREDICTIONS[2], "q1": PREDICTIONS[1], "q0": PREDICTIONS[0]}
    file.write_text(json.dumps(predictions))

    status, printed, errors = command("scores", file, "--scrolls", tmp_path / "sets", "--set", name)

    assert status == 0, errors
    title, *rows = printed.splitlines()
    assert title == f"{name}, validation: 3 questions"
    scores = {}
    for row in rows:
        metric, value = row.split()[:2]
        scores[metric] = float(value)
    assert scores == OFFICIAL[name]


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
def test_bad_predictions_are_refused(content: str, message: str, command: Command, tmp_path: Path) -> None:
    write_set(tmp_path / "sets", "qasper", lines())
    path = tmp_path / "predictions.json"
    path.write_text(content)

    status, printed, errors = command("scores", path, "--scrolls", tmp_path / "sets", "--set", "qasper")

    assert status == 2
    assert printed == ""
    assert f"{path}: {message}" in errors

"""Report on a comparison: its table, differences and picture."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import matplotlib.image
import pytest

from megatape.config import parse_config
from megatape.lab.study.comparison.report import ScoredVariant, report
from megatape.lab.study.results.figures import Figures
from megatape.lab.study.results.plots import Row
from megatape.lab.study.results.text_result import PERPLEXITY_AXES, TextResult
from tests.helpers.checks.cells import cells


def _result(raw_config: dict[str, Any], encoding: str, seed: int, figures: Figures, scaling: str | None = None) -> TextResult:
    """Return a run's result with a curve having two points, the first one being the passkey figure."""
    raw = copy.deepcopy(raw_config)
    raw["model"]["encoding"] = encoding
    raw["training"]["seed"] = seed
    config = parse_config(raw, "test")
    losses = {1: 5.0, 2: 3.0}
    curve = {1: figures.passkey[64], 2: 2.0}
    return TextResult(config, {"data": "d"}, scaling, figures, losses, curve, PERPLEXITY_AXES)


@pytest.fixture
def rows(raw_config: dict[str, Any]) -> list[Row]:
    """Return rope with two seeds, tape with three, and tape with scaled frequencies, lacking a validation loss."""

    def trained(encoding: str, seed: int, passkey: float, loss: float) -> TextResult:
        return _result(raw_config, encoding, seed, Figures(validation_loss=loss, passkey={64: passkey}))

    scaled = _result(raw_config, "tape", 1, Figures(passkey={64: 8.0}), "yarn")
    return [
        Row("rope", [trained("rope", 1, 10.0, 3.0), trained("rope", 2, 14.0, 4.0)]),
        Row("tape", [trained("tape", 1, 9.0, 2.5), trained("tape", 2, 12.0, 3.7), trained("tape", 3, 1.0, 1.0)]),
        Row("tape+yarn", [scaled]),
    ]


def test_result_is_read_back(rows: list[Row], tmp_path: Path) -> None:
    result = rows[0].results[0]
    path = tmp_path / "outcome.json"

    result.write(path)

    assert TextResult.read(path) == result


def test_truncated_result_is_refused(rows: list[Row], tmp_path: Path) -> None:
    path = tmp_path / "outcome.json"
    rows[0].results[0].write(path)
    path.write_text(path.read_text()[:-10])

    with pytest.raises(ValueError, match="outcome.json is corrupted"):
        TextResult.read(path)


def test_table_has_means_ranges_and_differences_of_equal_seeds(rows: list[Row], tmp_path: Path) -> None:
    text = report(rows, {}, ["a control"], "the command", tmp_path)

    assert text.startswith("    the command\n")
    assert (tmp_path / "comparison.md").read_text().strip() in text
    lines = []
    for line in text.splitlines():
        if line.startswith("| `"):
            # Skip the parameter count.
            name, _, *others = cells(line)
            lines.append([name, *others])
    scores = [
        ["`rope`", "2", "3.5 (3 to 4)", "12 (10 to 14)"],
        ["`tape`", "3", "2.4 (1 to 3.7)", "7.333 (1 to 12)"],
        ["`tape+yarn`", "1", "", "8 (8 to 8)"],
    ]
    differences = [
        ["`tape`", "2", "-0.4 (-0.5 to -0.3)", "-1.5 (-2 to -1)"],
        ["`tape+yarn`", "1", "", "-2 (-2 to -2)"],
    ]
    assert lines == scores + differences


def test_losses_by_position_have_tables_of_their_own(raw_config: dict[str, Any], tmp_path: Path) -> None:
    def trained(encoding: str, loss: float) -> TextResult:
        figures = Figures(validation_loss=3.0, by_position={"1-64": loss}, passkey={64: 1.0})
        return _result(raw_config, encoding, 1, figures)

    text = report([Row("rope", [trained("rope", 3.5)]), Row("tape", [trained("tape", 3.25)])], {}, [], "the command", tmp_path)

    headers = [cells(line)[3:] for line in text.splitlines() if line.startswith("| encoding")]
    assert headers == [["validation loss", "passkey at 64 (%)"], ["loss at positions 1-64"]] * 2
    assert cells(text.splitlines()[-3])[3:] == ["-0.25 (-0.25 to -0.25)"]


def test_scores_of_a_task_have_tables_of_their_own(rows: list[Row], tmp_path: Path) -> None:
    """Differences are those of equal seeds. A variant without results of the task is left out."""
    rope = ScoredVariant("rope", {1: {"right (%)": 20.0}, 2: {"right (%)": 30.0}})
    tape = ScoredVariant("tape", {2: {"right (%)": 33.0}, 3: {"right (%)": 50.0}})
    unknown = ScoredVariant("fire", {1: {"right (%)": 1.0}})

    text = report(rows, {"passkey --trials 9": [rope, tape, unknown], "scrolls": []}, [], "the command", tmp_path)

    _, tables = text.split("Evaluated by `megatape evaluate passkey --trials 9`:")
    lines = [cells(line) for line in tables.splitlines() if line.startswith("| `")]
    scores = [[name, *others] for name, _, *others in lines]
    assert scores == [
        ["`rope`", "2", "25 (20 to 30)"],
        ["`tape`", "2", "41.5 (33 to 50)"],
        ["`tape`", "1", "3 (3 to 3)"],
    ]
    assert "scrolls" not in text


def test_picture(rows: list[Row], tmp_path: Path) -> None:
    report(rows, {}, [], "the command", tmp_path)

    pixels = matplotlib.image.imread(tmp_path / "comparison.png")
    height, width = pixels.shape[:2]
    assert width > height
    assert pixels.std() > 0.05


def _select(row: Row, selection: Literal["first", "spread"]) -> Row:
    """Return a row with results on another selection of validation samples."""
    return Row(row.label, [replace(result, selection=selection) for result in row.results])


def test_losses_on_different_samples_are_not_compared(rows: list[Row], tmp_path: Path) -> None:
    """An earlier version evaluated on the first samples: its losses have a separate column and no difference."""
    earlier = _select(rows[0], "first")
    newer = [_select(row, "spread") for row in rows[1:]]

    text = report([earlier, *newer], {}, [], "the command", tmp_path)

    header, rope, tape, *_ = [cells(line) for line in text.splitlines() if line.startswith("|") and "---" not in line]
    assert header[3] == "validation loss (the first samples)"
    assert header[5] == "validation loss (samples of the whole split)"
    assert rope[3] == "3.5 (3 to 4)"
    assert rope[5] == ""
    assert tape[3] == ""
    assert tape[5] == "2.4 (1 to 3.7)"
    _, _, differences = text.partition("Difference from")
    assert "passkey at 64 (%)" in differences
    assert "validation loss" not in differences

"""Report on a comparison: its table, differences and picture."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest

from megatape.config import parse_config
from megatape.lab.study.comparison.report import report
from megatape.lab.study.results.figures import Figures
from megatape.lab.study.results.plots import Row
from megatape.lab.study.results.text_result import PERPLEXITY_AXES, TextResult
from tests.helpers.checks.cells import cells


def test_table_and_picture(raw_config: dict[str, Any], tmp_path: Path) -> None:
    def result(encoding: str, seed: int, passkey: float, loss: float | None = None) -> TextResult:
        raw = raw_config | {"model": raw_config["model"] | {"encoding": encoding}}
        config = parse_config(raw | {"training": raw["training"] | {"seed": seed}}, "test")
        figures = Figures(validation_loss=loss, passkey={64: passkey})
        scaling = "yarn" if loss is None else None
        losses = {1: 5.0, 2: 3.0}
        curve = {1: passkey, 2: 2.0}
        return TextResult(config, {"data": "d"}, scaling, figures, losses, curve, PERPLEXITY_AXES)

    rows = [
        Row("rope", [result("rope", 1, 10.0, 3.0), result("rope", 2, 14.0, 4.0)]),
        Row("tape", [result("tape", 1, 9.0, 2.5), result("tape", 2, 12.0, 3.7), result("tape", 3, 1.0, 1.0)]),
        Row("tape+yarn", [result("tape", 1, 8.0)]),
    ]
    kept = tmp_path / "outcome.json"
    rows[0].results[0].write(kept)
    assert TextResult.read(kept) == rows[0].results[0]
    kept.write_text(kept.read_text()[:-10])
    with pytest.raises(ValueError, match="outcome.json is corrupted"):
        TextResult.read(kept)

    text = report(rows, ["a control"], "the command", tmp_path)
    assert (tmp_path / "comparison.md").read_text().strip() in text
    assert text.startswith("    the command\n")
    lines = [cells(line) for line in text.splitlines() if line.startswith("| `")]
    spreads = [[name, *others] for name, _, *others in lines]  # without the parameters
    assert spreads == [
        ["`rope`", "2", "3.5 (3 to 4)", "12 (10 to 14)"],
        ["`tape`", "3", "2.4 (1 to 3.7)", "7.333 (1 to 12)"],
        ["`tape+yarn`", "1", "", "8 (8 to 8)"],
        # Differences are of equal seeds only.
        ["`tape`", "2", "-0.4 (-0.5 to -0.3)", "-1.5 (-2 to -1)"],
        ["`tape+yarn`", "1", "", "-2 (-2 to -2)"],
    ]

    # An earlier version evaluated on the first samples: its losses have a separate column and no difference.
    earlier = [Row(label, [replace(one, selection="first") for one in results]) for label, results in rows[:1]]
    newer = [Row(label, [replace(one, selection="spread") for one in results]) for label, results in rows[1:]]
    text = report([*earlier, *newer], [], "the command", tmp_path)
    header, *lines = [cells(line) for line in text.splitlines() if line.startswith("|") and "---" not in line]
    samples = ["validation loss (the first samples)", "validation loss (samples of the whole split)"]
    assert [header[column] for column in (3, 5)] == samples
    assert [[line[3], line[5]] for line in lines[:2]] == [["3.5 (3 to 4)", ""], ["", "2.4 (1 to 3.7)"]]
    differences = text.partition("Difference from")[2]
    assert "passkey at 64 (%)" in differences
    assert "validation loss" not in differences

    pixels = matplotlib.image.imread(tmp_path / "comparison.png")
    assert pixels.shape[1] > pixels.shape[0]
    assert pixels.std() > 0.05

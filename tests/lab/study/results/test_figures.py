"""Figures in a result, and their columns in tables and files."""

import json
from pathlib import Path
from typing import Any

import pytest

from megatape.config import parse_config
from megatape.errors import UserError
from megatape.lab.study.results.figures import Figures
from megatape.lab.study.results.text_result import ADDITION_AXES, TextResult

# Every column in outcome.json, ordered as in a table
COLUMNS = {
    "peak memory (GiB)": 1.5,
    "tokens/s": 1000.0,
    "first loss": 5.0,
    "last loss": 3.0,
    "validation loss": 3.5,
    "validation loss of web at 4": 3.25,
    "trained lengths (%)": 99.0,
    "beyond (%)": 12.5,
    "all (%)": 40.0,
    "perplexity at 128": 33.0,
    "perplexity at 256": 30.0,
    "loss at positions 65-128": 3.25,
    "passkey at 64 (%)": 75.0,
}
FIGURES = Figures(
    peak_memory=1.5,
    tokens_per_second=1000.0,
    first_loss=5.0,
    last_loss=3.0,
    validation_loss=3.5,
    part_losses={"web at 4": 3.25},
    trained_digits=99.0,
    more_digits=12.5,
    all_digits=40.0,
    perplexity={128: 33.0, 256: 30.0},
    by_position={"65-128": 3.25},
    passkey={64: 75.0},
)


def test_columns_are_in_the_order_of_a_table() -> None:
    assert list(FIGURES.columns().items()) == list(COLUMNS.items())
    assert Figures().columns() == {}


def test_figures_are_read_from_columns() -> None:
    assert Figures.of_columns(COLUMNS) == FIGURES


def test_figures_on_validation_text_are_noted() -> None:
    expected = [f"{title} (x)" for title in COLUMNS if title.startswith(("validation loss", "perplexity", "loss at positions"))]

    assert [title for title in FIGURES.columns(" (x)") if title.endswith(" (x)")] == expected


def test_dependence_on_validation_text() -> None:
    assert FIGURES.depend_on_validation_text
    assert not Figures(first_loss=1.0, passkey={64: 75.0}).depend_on_validation_text


@pytest.mark.parametrize("title", ["loss", "perplexity at many", "passkey at 64", "validation loss (%)"])
def test_unknown_column_is_refused(title: str) -> None:
    with pytest.raises(UserError, match="is not a figure of this version"):
        Figures.of_columns({title: 1.0})


@pytest.fixture
def result(raw_config: dict[str, Any]) -> TextResult:
    config = parse_config(raw_config, "test")
    return TextResult(config, {"data": "d"}, None, FIGURES, {4: 3.0}, {1: 99.0, 2: 12.5}, ADDITION_AXES)


def test_file_holds_columns(result: TextResult, tmp_path: Path) -> None:
    path = tmp_path / "outcome.json"

    result.write(path)

    content = json.loads(path.read_text())
    assert list(content) == ["config", "fingerprints", "scaling", "figures", "losses", "curve", "axes", "selection"]
    assert content["figures"] == COLUMNS
    assert content["axes"] == ["digits of the longer operand", "exact match (%)"]
    assert TextResult.read(path) == result


def test_figure_that_is_no_number_is_refused(result: TextResult, tmp_path: Path) -> None:
    path = tmp_path / "outcome.json"
    result.write(path)
    content = json.loads(path.read_text())
    content["figures"] = {"tokens/s": "many"}
    path.write_text(json.dumps(content))

    with pytest.raises(UserError, match=r"outcome.json is corrupted \(.*many"):
        TextResult.read(path)

"""Runs only differing in their seed share a line in a report's charts."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from megatape.run_folder import RunFolder
from tests.helpers.lab.report_pages import ReportPage, curve, page_of, row_cells
from tests.helpers.processes.command import Command
from tests.helpers.runs.report_folders import make_run


def losses(folder: RunFolder) -> list[float]:
    return [json.loads(line)["loss"] for line in folder.metrics.read_text().splitlines()]


class Comparison(NamedTuple):
    """Report on two runs with tape only differing in their seed, and a shorter one with rope.

    Attributes:
        seeds: Runs with tape.
        page: The report's page.
    """

    seeds: list[RunFolder]
    page: ReportPage


@pytest.fixture
def comparison(command: Command, data_directory: Path, tmp_path: Path) -> Comparison:
    seeds = [make_run(tmp_path / f"tape/seed-{seed}", data_directory, seed=seed) for seed in (1, 1001)]
    rope = make_run(tmp_path / "rope", data_directory, encoding="rope", steps=10)
    directories = [run.directory for run in (*seeds, rope)]
    return Comparison(seeds, page_of(command, tmp_path / "out", *directories))


def test_seeds_share_a_curve_with_a_band(comparison: Comparison) -> None:
    _, content, errors = comparison.page
    first, second = [losses(run) for run in comparison.seeds]

    assert not errors
    assert content["labels"] == ["tape (2 seeds)", "rope"]
    loss = curve(content, "Loss", 0)
    assert loss["x"] == list(range(1, 21))
    assert loss["y"] == pytest.approx(np.mean([first, second], axis=0).tolist(), rel=1e-5)
    assert loss["low"] == pytest.approx(first, rel=1e-5)
    assert loss["high"] == pytest.approx(second, rel=1e-5)


def test_charts_of_a_report(comparison: Comparison) -> None:
    content = comparison.page.content

    assert curve(content, "Loss", 0, "points")["x"] == [5, 10, 15, 20]
    assert curve(content, "Throughput", 1)["y"] == [2560] * 10
    assert curve(content, "Peak memory", 1)["y"] == [1] * 10
    (entropy,) = content["charts"][0]["lines"]
    assert entropy["label"] == "unigram entropy"
    assert 3 < entropy["y"] < 6


def test_table_of_a_report(comparison: Comparison) -> None:
    text = comparison.page.text

    assert row_cells(text, "steps") == ["20 of 20", "20 of 20", "10 of 10"]
    assert row_cells(text, "model.encoding") == ["tape", "tape", "rope"]
    assert row_cells(text, "training.seed") == ["1", "1001", "1234"]
    assert "4 checkpoints" in text
    assert "5 to 20" in text


def test_runs_on_different_validation_samples(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """An earlier version did not record which samples it selected. Its run shares no line with a new one, as a note says."""
    runs = [make_run(tmp_path / f"seed-{seed}", data_directory, seed=seed) for seed in (1, 2)]
    earlier = runs[0].metrics
    earlier.write_text(earlier.read_text().replace(', "validation_selection": "spread"', ""))
    text, content, errors = page_of(command, tmp_path / "out", *(run.directory for run in runs))
    assert content["labels"] == ["seed-1", "seed-2"]
    note = (
        "validation losses are not comparable: runs were evaluated on different samples (seed-1: the first 8; seed-2: 8, "
        "evenly spaced)"
    )
    assert f"warning: {note}" in errors
    assert note in text
    assert row_cells(text, "validation samples") == ["the first 8", "8, evenly spaced"]


def test_runs_with_the_same_seed(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """The band around such runs is not called a spread over seeds."""
    runs = [make_run(tmp_path / name, data_directory) for name in ("tape-1", "tape-2")]
    _, content, _ = page_of(command, tmp_path / "out", *(run.directory for run in runs))
    assert content["labels"] == ["tape (2 runs)"]

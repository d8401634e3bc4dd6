"""Position views in a report."""

import base64
from pathlib import Path

import numpy as np
import pytest

from megatape.lab.report.positions import MAX_MAPS, MAX_STEPS
from megatape.training.position_views.view import PositionView
from tests.helpers.lab.report_pages import page_of
from tests.helpers.processes.command import Command
from tests.helpers.runs.report_folders import make_run


def lower_triangle(encoded: str, limit: float) -> np.ndarray:
    """Return the values in a map, which has a byte for each pair of positions."""
    return np.frombuffer(base64.b64decode(encoded), np.int8) / 127 * limit


def test_position_views_equal_the_recorded_ones(command: Command, data_directory: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", data_directory, steps=20, evaluated=5, num_layers=4)
    recorded = PositionView.load(run.position_view(15))
    rows, columns = np.tril_indices(16)

    _, content, _ = page_of(command, tmp_path / "out", run.directory)

    (view,) = content["views"]
    number = view["steps"].index(15)
    assert view["layers"] == [1, 2, 3, 4]
    assert view["by"] == "head"
    for encoded, products, limit in zip(view["maps"][number], recorded.products, view["limits"], strict=True):
        expected = products[rows, columns].clip(-limit, limit)
        assert np.abs(lower_triangle(encoded, limit) - expected).max() <= limit / 127
    assert view["norms"][number] == pytest.approx(recorded.norms.tolist(), rel=1e-5)
    assert np.array(view["gains"][number]) == pytest.approx(recorded.gains, rel=1e-5)


def test_corrupted_and_later_position_views_are_left_out(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """The run resumed from step 20, so step 25's view belongs to discarded steps."""
    run = make_run(tmp_path / "run", data_directory, steps=20, evaluated=5, num_layers=4)
    PositionView.load(run.position_view(15)).save(run, 25)
    run.position_view(10).write_bytes(b"")

    text, content, errors = page_of(command, tmp_path / "out", run.directory)

    (view,) = content["views"]
    assert view["steps"] == [5, 15, 20]
    assert "step-00000010.safetensors is corrupted" in errors
    assert "step-00000010.safetensors is corrupted" in text


def test_position_views_of_entries(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """A vector has as many entries here as there are heads, without being one value per head."""
    run = make_run(tmp_path / "vector", data_directory, encoding="tape_vector", steps=20, evaluated=5)

    _, content, _ = page_of(command, tmp_path / "out", run.directory)

    assert content["views"][0]["by"] == "entry"


def test_some_of_many_position_views_are_shown(command: Command, data_directory: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", data_directory, steps=40, evaluated=1)

    _, content, _ = page_of(command, tmp_path / "out", run.directory)

    (view,) = content["views"]
    assert len(view["steps"]) == MAX_STEPS
    assert view["steps"][0] == 1
    assert view["steps"][-1] == 40


def test_position_views_of_twenty_runs_are_limited(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """docs/watch.md states their size."""
    runs = [make_run(tmp_path / str(number), data_directory, evaluated=2, position_size=number + 1) for number in range(20)]

    _, content, _ = page_of(command, tmp_path / "out", *[run.directory for run in runs])

    assert len(content["labels"]) == 20
    assert content["labels"][3] == "3"
    num_maps = sum(len(step) for view in content["views"] for step in view["maps"])
    assert num_maps >= 20 * 2
    assert num_maps <= MAX_MAPS

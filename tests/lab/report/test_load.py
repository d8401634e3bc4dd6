"""Loading runs for a report: their names, their own modules, and refused folders."""

import json
import re
from pathlib import Path

import pytest

from megatape.lab.report.load import load_runs
from megatape.run_folder import RunFolder
from tests.helpers.lab.report_pages import curve, page_of, row_cells
from tests.helpers.processes.command import Command
from tests.helpers.runs.report_folders import OWN_MODULE, make_run, train_with_own_module


def losses(folder: RunFolder) -> list[float]:
    return [json.loads(line)["loss"] for line in folder.metrics.read_text().splitlines()]


def test_runs_with_own_modules_need_no_import(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """Losses and settings need no code, only counting parameters does."""
    own = make_run(tmp_path / "own", data_directory)
    rope = make_run(tmp_path / "rope", data_directory, encoding="rope")
    train_with_own_module(own)
    text, content, errors = page_of(command, tmp_path / "page", own.directory, rope.directory)
    assert not errors
    assert curve(content, "Loss", 0)["y"] == pytest.approx(losses(own), rel=1e-5)
    assert row_cells(text, "optimizer.momentum") == ["0.75", ""]
    assert row_cells(text, "model.encoding") == ["own", "rope"]
    unknown, known = row_cells(text, "parameters")
    assert unknown == f"not counted: add --import {OWN_MODULE}"
    assert int(known.replace(",", "")) > 1000


def test_misspelled_encoding_is_refused(command: Command, data_directory: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", data_directory)
    text = folder.config.read_text()
    folder.config.write_text(text.replace('"encoding": "tape"', '"encoding": "tap"'))

    status, _, errors = command("report", folder.directory, "--output", tmp_path / "page")

    assert status == 2
    assert "model.encoding" in errors
    assert "did you mean tape?" in errors


def test_types_are_checked_in_runs_with_own_modules(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """Names of encodings are not checked."""
    folder = make_run(tmp_path / "run", data_directory)
    train_with_own_module(folder)
    raw = json.loads(folder.config.read_text())
    raw["model"]["num_layers"] = "many"
    folder.config.write_text(json.dumps(raw))

    status, _, errors = command("report", folder.directory, "--output", tmp_path / "page")

    assert status == 2
    assert "model.num_layers" in errors
    assert "many" in errors


def assert_report_refused(command: Command, output: Path, *words: object, message: str) -> None:
    """Check that a report is refused with one line before anything is written."""
    status, _, errors = command("report", *words, "--output", output)
    assert status == 2
    assert message in errors
    assert errors.count("\n") == 1, errors
    assert not output.exists()


def test_folders_that_are_no_runs_are_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    out = tmp_path / "out"

    assert_report_refused(command, out, tmp_path / "nowhere", message="nowhere: give a run directory")
    assert_report_refused(command, out, tmp_path / "empty", message="empty holds no run: it has no config.json")
    assert_report_refused(command, out, tmp_path / "loop", message="loop: give a run directory")


def test_repeated_runs_are_refused(command: Command, run: RunFolder, tmp_path: Path) -> None:
    again = run.directory / "../run"

    assert_report_refused(command, tmp_path / "out", run.directory, again, message="is given twice")


def test_missing_folder_of_evaluations_is_refused(command: Command, run: RunFolder, tmp_path: Path) -> None:
    words = (run.directory, "--evaluations", tmp_path / "nothing")

    assert_report_refused(command, tmp_path / "out", *words, message="nothing: give one below which")


def test_labels_leave_out_what_paths_have_in_common(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """The common parts may be anywhere."""
    folders = []
    for encoding in ("rope", "tape"):
        folder = tmp_path / f"suite/{encoding}/rate-0.001/seed-1"
        make_run(folder, data_directory, steps=1, encoding=encoding)
        folders.append(folder)

    _, content, _ = page_of(command, tmp_path / "out", *folders)

    assert content["labels"] == ["rope", "tape"]
    page = (tmp_path / "out/index.html").read_text()
    assert "model.<wbr>encoding</th>" in page, "names of fields break after dots"
    assert re.search(r'<details id="differences"><summary>\d+ field', page)


def test_names_of_runs_at_different_depths(data_directory: Path, tmp_path: Path) -> None:
    far = make_run(tmp_path / "elsewhere/far/away/third", data_directory, steps=1, encoding="alibi")
    near = make_run(tmp_path / "a", data_directory, steps=1, seed=0)
    below = make_run(tmp_path / "b/c", data_directory, steps=1, seed=1)

    runs = load_runs([far.directory, near.directory, below.directory])

    assert [run.name for run in runs] == ["third", "a", "c"]

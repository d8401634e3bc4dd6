"""`megatape report` without a browser: runs that are training, and pages that follow them."""

import json
from pathlib import Path

from megatape.lab.report.page import watch_report
from megatape.run_folder import RunFolder
from megatape.utils.files.json_lines import append_lines
from tests.helpers.lab.report_pages import curve, page_of, row_cells
from tests.helpers.processes.command import Command
from tests.helpers.runs.report_folders import HOSTILE, make_run


def test_run_that_is_training(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """Incomplete lines and losses that are no numbers are left out, and a file name that is not UTF-8 is text. There is also a
    run before its first step."""
    run = make_run(tmp_path / HOSTILE.replace("/", ""), data_directory)
    odd = [
        {"step": 21, "loss": float("nan")},
        {"step": 22, "loss": "<b>"},
        {"step": True},
        {"step": -3},
        {"step": 10**400},
        [1],
    ]
    with run.metrics.open("a") as file:
        file.write("".join(f"{json.dumps(line)}\n" for line in odd) + '{"step": 23, "lo')
    with run.events.open("a") as file:
        # A file name in Latin-1 has such surrogates.
        detail = json.dumps(HOSTILE + "f\udcfcr")
        file.write(f'{{"time": 1e99, "event": "failed", "step": 22, "detail": {detail}}}\n{{"time": 3}}\n{{"ti')
    new = make_run(tmp_path / "new", data_directory, steps=1)
    for path in (new.metrics, new.events):
        path.unlink()
    text, content, _ = page_of(command, tmp_path / "out", run.directory, new.directory)
    assert curve(content, "Loss", 0)["x"] == list(range(1, 21))
    assert row_cells(text, "steps") == ["22 of 20", "0 of 1"]
    assert "No events were recorded" in text
    assert "<img" not in text
    assert "&lt;img src=x" in text
    assert "f\\udcfcr" in text
    assert "\\u003cimg src=x" in text


def test_existing_output_is_refused(command: Command, run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    status, _, errors = command("report", run.directory, "--output", tmp_path / "empty")

    assert status == 2
    assert "empty exists: remove it or choose another name" in errors


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_watched_page_follows_a_run(run: RunFolder, tmp_path: Path) -> None:
    """Watching writes nothing into the run directory, and a complete page no longer reloads."""
    lines = run.metrics.read_text().splitlines(keepends=True)
    run.metrics.write_text("".join(lines[:12]))
    before = contents(run.directory)

    pages = watch_report([run.directory], [], tmp_path / "out", 0.01)
    page, _ = next(pages)
    assert contents(run.directory) == before
    assert 'data-refresh="0.01"' in page.read_text()
    assert "<b>12</b> of 20" in page.read_text()

    config = run.config.read_bytes()
    run.config.write_text("{")
    append_lines(run.metrics, [json.loads(lines[12])])
    _, reasons = next(pages)
    assert "the page stays as it was" in reasons[0]
    assert "<b>12</b> of 20" in page.read_text()

    run.config.write_bytes(config)
    append_lines(run.metrics, map(json.loads, lines[13:]))
    assert next(pages) == (page, [])
    assert next(pages, None) is None
    assert "data-refresh" not in page.read_text()
    assert "<b>20</b> of 20" in page.read_text()


def test_watching_a_finished_run_ends(command: Command, run: RunFolder, tmp_path: Path) -> None:
    """Reporting again replaces the page."""
    page_of(command, tmp_path / "out", run.directory)

    status, printed, errors = command("report", run.directory, "--output", tmp_path / "out", "--watch", "1")

    assert status == 0, errors
    assert "no longer reload" in printed


def test_watching_does_not_replace_a_foreign_page(command: Command, run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    page = tmp_path / "mine/index.html"
    page.write_text("<html>")

    status, _, errors = command("report", run.directory, "--output", tmp_path / "mine", "--watch")

    assert status == 2
    assert "mine exists" in errors
    assert page.read_text() == "<html>"

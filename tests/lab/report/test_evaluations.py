"""Evaluation results in a report."""

import os
import re
import shutil
from pathlib import Path

from megatape.lab.tasks.engine.result import Measure
from tests.helpers.lab.report_pages import page_of, row_cells
from tests.helpers.processes.command import Command
from tests.helpers.runs.report_folders import HOSTILE, make_results, make_run


def test_evaluations_are_grouped_by_task_and_settings(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """Evaluations are found below a run and in other folders, and each group has the paper's figures once."""
    run = make_run(tmp_path / "run", data_directory)
    paper = {"paper": {"TAPE": {"nats": 1.25}}}
    short = {"settings": {"length": 512}}
    long = {"settings": {"length": 1024}}
    first = make_results(
        run.directory / "e/a",
        "perplexity",
        "a",
        [Measure("nats", 1.23456, 0.01, 12345), Measure("more", 2.0, None, 9)],
        **short,
        **paper,
    )
    make_results(tmp_path / "more/b", "perplexity", HOSTILE, [Measure("nats", 1.5, None, 9)], **short, **paper)
    make_results(
        tmp_path / "more/c", "perplexity", "a", [Measure("nats", 1.1, None, 9), Measure("more", 1.0, None, 9)], **long, **paper
    )
    other = {"paper": {"LoRA": {"at 8192": 99.0}}}
    make_results(tmp_path / "more/d", "passkey", "a", [Measure("at 512", float("nan"), None, 9)], **other)
    make_results(tmp_path / "more/e", "passkey", "a", [], format=2)
    (tmp_path / "more/e2").mkdir()
    (tmp_path / "more/e2/results.json").write_text("[" * 100_000)
    os.mkfifo(tmp_path / "more/e/picture.png")
    (tmp_path / "more/pipe").mkdir()
    os.mkfifo(tmp_path / "more/pipe/results.json")
    (first.parent / "perplexity.png").write_bytes(b"\x89PNG")
    shutil.copytree(first.parent, tmp_path / "more/copy")  # a copy with the same row and picture
    (first.parent / "perplexity-dark.png").write_bytes(b"\x89PNG on black")
    # A picture showing a single number, already in the table
    (tmp_path / "more/b/number.png").write_bytes(b"\x89PNG")
    (tmp_path / "more/c/large.png").write_bytes(b"0" * 2**21)
    text, _, errors = page_of(command, tmp_path / "out", run.directory, "--evaluations", tmp_path / "more", tmp_path / "more/b")
    assert re.findall(r"<h3>(perplexity|passkey)</h3>", text) == ["passkey", "perplexity", "perplexity"]
    assert row_cells(text, "a") == [" (9)"]
    assert "1.235 <span" in text
    assert "± 0.01" in text
    assert "(12,345)" in text
    assert text.count("paper: TAPE") == 2
    assert row_cells(text, "paper: TAPE") == ["1.25", ""]
    assert text.count("(12,345)") == 1
    assert "paper: LoRA" not in text
    # The table has only the requested lengths.
    assert "at 8192" not in text
    assert text.count("&lt;img src=x") == 1
    assert text.count('src="data:image/png;base64,iVBORw=="') == text.count("<img") == 1
    assert text.count('<source media="(prefers-color-scheme: dark)" srcset="data:image/png;base64,iVBORyBvbiBibGFjaw==">') == 1
    for file, reason in {
        "c/large.png": "it is larger than 1.00 MiB",
        "e/results.json": "format: must be 1, got ",
        "e2/results.json": "nested more than 64 levels",
    }.items():
        assert re.search(f"more/{file} is not shown.*{reason}", errors)
        assert f"more/{file} is not shown" in text

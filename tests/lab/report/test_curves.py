"""Curves drawn for long runs."""

import json
from pathlib import Path

import pytest

from megatape.lab.report.curves import MAX_POINTS
from tests.helpers.lab.report_pages import curve, page_of
from tests.helpers.processes.command import Command
from tests.helpers.runs.report_folders import make_run


def test_long_curves_keep_their_extremes(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """One step with a large loss is still visible among 100,000."""
    run = make_run(tmp_path / "run", data_directory, steps=40, evaluated=1)
    with run.metrics.open("w") as file:
        for step in range(1, 100_001):
            loss = 3.0
            if step == 77_777:
                loss = 50.0
            file.write(json.dumps({"step": step, "loss": loss, "lr": step * 1e-6}) + "\n")

    _, content, _ = page_of(command, tmp_path / "out", run.directory)

    loss_curve = curve(content, "Loss", 0)
    assert len(loss_curve["x"]) == MAX_POINTS
    assert max(loss_curve["high"]) == 50
    assert loss_curve["low"] == [3] * MAX_POINTS
    rates = [step * 1e-6 for step in loss_curve["x"]]
    assert curve(content, "Learning rate", 0)["y"] == pytest.approx(rates, rel=1e-4)

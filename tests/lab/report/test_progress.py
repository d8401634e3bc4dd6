"""The headlines that a report opens on, against a run whose numbers are known."""

import json
from pathlib import Path
from typing import Any

import pytest

from megatape.accounting.flops import forward_flops
from megatape.lab.report.curves import charts
from megatape.lab.report.groups import group_runs, make_clock
from megatape.lab.report.load import load_runs
from megatape.lab.report.progress import Progress, progress
from megatape.reliability.run_log import event_entry
from megatape.run_folder import RunFolder
from megatape.utils.json_lines import append_lines
from tests.helpers.runs.report_folders import cut, make_run

STEP_TOKENS = 256  # of tests.helpers.runs.report_folders, whose steps take 0.1 s


def of(folder: RunFolder) -> Progress:
    (found,) = progress(load_runs([folder.directory]))
    return found


def values(one: Progress) -> dict[str, str | None]:
    return {name: headline.value for name, headline in one.headlines.items()}


def number(one: Progress, name: str) -> float:
    value = one.headlines[name].value
    assert value is not None
    return float(value)


def select_first(folder: RunFolder) -> None:
    """Give a run the metrics of an earlier version, which evaluated on the first samples without recording it."""
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    for line in lines:
        line.pop("validation_selection", None)
    folder.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_figures(data_directory: Path, tmp_path: Path) -> None:
    one = of(make_run(tmp_path / "run", data_directory))
    assert one.state == "finished" and one.done == 1 and "MFU" not in one.headlines
    assert values(one) | {"loss": "", "validation": ""} == {
        "loss": "",
        "validation": "",
        "tokens": "5.12K",
        "tokens/s": "2.56K",
        "time": "2 s",
        "events": "5",
    }
    assert number(one, "validation") == pytest.approx(number(one, "loss") + 0.2, abs=1e-4)
    assert one.headlines["events"].note == "4 checkpoints" and one.headlines["tokens"].note == "of 5.12K"


def test_warm_up_of_the_batch_size(data_directory: Path, tmp_path: Path) -> None:
    """10 steps of 4 samples, then 10 of 8, 32 tokens each, in 0.1 s a step."""
    folder = make_run(tmp_path / "run", data_directory)
    raw = json.loads(folder.config.read_text())
    raw["training"]["batch_warmup"] = [{"samples": 4, "tokens": 1280}]
    folder.config.write_text(json.dumps(raw))
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    lines = [line | {"samples": 4 * min(line["step"], 10) + 8 * max(0, line["step"] - 10)} for line in lines]
    folder.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert (values(of(folder))["tokens"], values(of(folder))["tokens/s"]) == ("3.84K", "2.56K")
    (group,) = group_runs(load_runs([folder.directory]))
    times, (speed,) = make_clock(group), [chart for chart in charts([group]) if chart.title == "Throughput"]
    assert [times.tokens[times.steps.index(step)] for step in (0, 10, 20)] == [0, 1280, 3840]
    assert [speed.series[0].y[step - 1] for step in (1, 10, 11, 20)] == [1280, 1280, 2560, 2560]
    cut(folder, 10)
    assert values(of(folder))["tokens/s"] == "1.28K" and of(folder).note == "2 s left"


def test_a_batch_size_that_was_changed(data_directory: Path, tmp_path: Path) -> None:
    """Tokens are those that steps have recorded; those that are left are of the present configuration."""
    folder = make_run(tmp_path / "run", data_directory)
    raw = json.loads(folder.config.read_text())
    raw["training"] |= {"global_batch_size": 16, "steps": 30}
    folder.config.write_text(json.dumps(raw))
    assert (of(folder).headlines["tokens"].value, of(folder).headlines["tokens"].note) == ("5.12K", "of 10.2K")
    (group,) = group_runs(load_runs([folder.directory]))
    assert make_clock(group).tokens[-1] == 5120


def test_moving_average(data_directory: Path, tmp_path: Path) -> None:
    """It has a figure, which is marked where it is the best, and a chart; a run without one has neither."""
    folders = [make_run(tmp_path / f"{seed}", data_directory, seed=seed, ema=seed > 1) for seed in (1, 2, 3000)]
    runs = load_runs([folder.directory for folder in folders])
    without, best, other = progress(runs)
    assert [one.headlines["EMA"].best for one in (without, best, other)] == [False, True, False]
    assert without.headlines["EMA"].value is None and "EMA" not in of(folders[0]).headlines
    expected = number(best, "validation") - 0.1
    assert number(best, "EMA") == pytest.approx(expected, abs=1e-4)
    (drawn,) = (chart for chart in charts(group_runs(runs[1:2])) if chart.title == "Loss of the moving average")
    assert [series.x for series in drawn.series] == [[5, 10, 15, 20]]
    assert drawn.series[0].y[-1] == pytest.approx(expected, abs=1e-4)
    assert all("average" not in chart.title for chart in charts(group_runs(runs[:1])))


def test_utilization(data_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three forward passes over the peak of all ranks' GPUs; on a device that is not known there is no such figure."""
    folder = make_run(tmp_path / "run", data_directory)
    text = folder.config.read_text()
    folder.config.write_text(text.replace('"precision": "float32"', '"precision": "bfloat16"'))
    for device, ranks, expected in (("NVIDIA H100 80GB HBM3", 2, True), ("NVIDIA H100", "many", False), ("unknown", 2, False)):
        environment = {"environment": {"device": device, "ranks": ranks}}
        append_lines(folder.events, [event_entry("resumed", 20, "") | environment])
        (run,) = load_runs([folder.directory])
        flops = 3 * forward_flops(run.config.model, run.config.data.sequence_length) * run.config.training.global_batch_size
        assert ("MFU" in of(folder).headlines) == expected, device
        if expected:
            assert of(folder).headlines["MFU"].value == f"{flops / 0.1 / 989e12 / 2:.1%}"


def test_best_of_several(data_directory: Path, tmp_path: Path) -> None:
    """The lowest losses are marked, and runs without losses do not count.

    No loss of runs on different data is comparable, and no validation loss of runs on different validation samples.
    """
    folders: list[Any] = [make_run(tmp_path / str(seed), data_directory, seed=seed) for seed in (2000, 1, 3000)]
    folders.append(make_run(tmp_path / "new", data_directory))
    cut(folders[-1], 0)
    found = progress(load_runs([folder.directory for folder in folders]))
    assert [[one.headlines[name].best for one in found] for name in ("loss", "validation")] == [[False, True, False, False]] * 2
    select_first(folders[0])
    found = progress(load_runs([folder.directory for folder in folders]))
    assert [[one.headlines[name].best for one in found] for name in ("loss", "validation")] == [
        [False, True, False, False],
        [False] * 4,
    ]
    other = folders[0].config
    other.write_text(other.read_text().replace('"sequence_length": 32', '"sequence_length": 16'))
    assert not any(one.headlines["loss"].best for one in progress(load_runs([folder.directory for folder in folders])))

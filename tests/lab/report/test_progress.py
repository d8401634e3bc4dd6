"""The headlines that a report opens on, against a run whose numbers are known."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from megatape.accounting.whole_model.flops import forward_flops
from megatape.lab.report.curves import charts
from megatape.lab.report.groups import group_runs, make_clock
from megatape.lab.report.load import load_runs
from megatape.lab.report.progress import Progress, progress
from megatape.reliability.run_log import event_entry
from megatape.run_folder import RunFolder
from megatape.utils.files.json_lines import append_lines
from tests.helpers.runs.report_folders import cut, make_run


def shown(folder: RunFolder) -> Progress:
    """Return the headlines for a run alone."""
    (run_progress,) = progress(load_runs([folder.directory]))
    return run_progress


def progress_of(folders: list[RunFolder]) -> list[Progress]:
    return progress(load_runs([folder.directory for folder in folders]))


def value(run_progress: Progress, name: str) -> str | None:
    return run_progress.headlines[name].value


def number(run_progress: Progress, name: str) -> float:
    text = value(run_progress, name)
    assert text is not None
    return float(text)


def is_best(runs: list[Progress], name: str) -> list[bool]:
    """Return whether each run is marked as the best in a headline."""
    return [run.headlines[name].best for run in runs]


def change_config(folder: RunFolder, section: str, **changes: Any) -> None:
    raw = json.loads(folder.config.read_text())
    raw[section] |= changes
    folder.config.write_text(json.dumps(raw))


def change_metrics(folder: RunFolder, change: Callable[[dict[str, Any]], object]) -> None:
    """Edit every step's metrics in place."""
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    for line in lines:
        change(line)
    folder.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def select_first_samples(folder: RunFolder) -> None:
    """Give a run metrics as written by an earlier version, which evaluated on the first samples without recording it."""
    change_metrics(folder, lambda line: line.pop("validation_selection", None))


def test_headlines_of_a_finished_run(data_directory: Path, tmp_path: Path) -> None:
    run_progress = shown(make_run(tmp_path / "run", data_directory))

    assert run_progress.state == "finished"
    assert run_progress.done == 1
    assert list(run_progress.headlines) == ["loss", "validation", "tokens", "tokens/s", "time", "goodput", "events"]
    assert value(run_progress, "tokens") == "5.12K"
    assert run_progress.headlines["tokens"].note == "of 5.12K"
    assert value(run_progress, "tokens/s") == "2.56K"
    assert value(run_progress, "time") == "2 s"
    assert value(run_progress, "events") == "5"
    assert run_progress.headlines["events"].note == "4 checkpoints"
    assert number(run_progress, "validation") == pytest.approx(number(run_progress, "loss") + 0.2, abs=1e-4)


@pytest.fixture
def warmed_up(data_directory: Path, tmp_path: Path) -> RunFolder:
    """Write a run of 10 steps with 4 samples, then 10 with 8, each sample having 32 tokens, taking 0.1 s per step."""

    def count_samples(line: dict[str, Any]) -> None:
        small_steps = min(line["step"], 10)
        large_steps = line["step"] - small_steps
        line["samples"] = 4 * small_steps + 8 * large_steps

    folder = make_run(tmp_path / "run", data_directory)
    change_config(folder, "training", batch_warmup=[{"samples": 4, "tokens": 1280}])
    change_metrics(folder, count_samples)
    return folder


def test_tokens_with_a_warm_up_of_the_batch_size(warmed_up: RunFolder) -> None:
    assert value(shown(warmed_up), "tokens") == "3.84K"
    assert value(shown(warmed_up), "tokens/s") == "2.56K"


def test_curves_with_a_warm_up_of_the_batch_size(warmed_up: RunFolder) -> None:
    (group,) = group_runs(load_runs([warmed_up.directory]))

    clock = make_clock(group)
    (throughput,) = [chart for chart in charts([group]) if chart.title == "Throughput"]

    tokens = dict(zip(clock.steps, clock.tokens, strict=True))
    assert tokens[0] == 0
    assert tokens[10] == 1280
    assert tokens[20] == 3840
    speeds = throughput.series[0].y
    assert speeds[:10] == [1280] * 10
    assert speeds[10:] == [2560] * 10


def test_remaining_time_with_a_warm_up_of_the_batch_size(warmed_up: RunFolder) -> None:
    cut(warmed_up, 10)

    run_progress = shown(warmed_up)

    assert value(run_progress, "tokens/s") == "1.28K"
    assert run_progress.note == "2 s left"


def test_tokens_with_a_changed_batch_size(data_directory: Path, tmp_path: Path) -> None:
    """Finished tokens are those that steps recorded, and remaining ones follow from the present configuration."""
    folder = make_run(tmp_path / "run", data_directory)

    change_config(folder, "training", global_batch_size=16, steps=30)

    tokens = shown(folder).headlines["tokens"]
    assert tokens.value == "5.12K"
    assert tokens.note == "of 10.2K"
    (group,) = group_runs(load_runs([folder.directory]))
    assert make_clock(group).tokens[-1] == 5120


@pytest.fixture
def averaged(data_directory: Path, tmp_path: Path) -> list[RunFolder]:
    """A run without a moving average, the best one and another one with it."""
    return [
        make_run(tmp_path / "1", data_directory, seed=1),
        make_run(tmp_path / "2", data_directory, seed=2, ema=True),
        make_run(tmp_path / "3000", data_directory, seed=3000, ema=True),
    ]


def test_headline_of_the_moving_average(averaged: list[RunFolder]) -> None:
    """A run has an empty one if only other runs have an average, and none if it is shown alone."""
    without, best, other = progress_of(averaged)

    assert is_best([without, best, other], "EMA") == [False, True, False]
    assert value(without, "EMA") is None
    assert "EMA" not in shown(averaged[0]).headlines
    assert number(best, "EMA") == pytest.approx(number(best, "validation") - 0.1, abs=1e-4)


def test_chart_of_the_moving_average(averaged: list[RunFolder]) -> None:
    runs = load_runs([folder.directory for folder in averaged])

    (chart,) = [chart for chart in charts(group_runs(runs[1:2])) if chart.title == "Loss of the moving average"]

    (series,) = chart.series
    assert series.x == [5, 10, 15, 20]
    assert series.y[-1] == pytest.approx(number(shown(averaged[1]), "validation") - 0.1, abs=1e-4)
    for chart in charts(group_runs(runs[:1])):
        assert "average" not in chart.title


@pytest.fixture
def on_device(data_directory: Path, tmp_path: Path) -> Callable[[str, object], RunFolder]:
    """on_device("NVIDIA H100 80GB HBM3", 2): a bfloat16 run that recorded this device and number of ranks."""

    def make(device: str, ranks: object) -> RunFolder:
        folder = make_run(tmp_path / "run", data_directory)
        text = folder.config.read_text()
        folder.config.write_text(text.replace('"precision": "float32"', '"precision": "bfloat16"'))
        environment = {"environment": {"device": device, "ranks": ranks}}
        append_lines(folder.events, [event_entry("resumed", 20, "") | environment])
        return folder

    return make


def test_utilization(on_device: Callable[[str, object], RunFolder]) -> None:
    """Utilization is three forward passes, divided by the peak of all ranks' GPUs."""
    folder = on_device("NVIDIA H100 80GB HBM3", 2)
    (run,) = load_runs([folder.directory])
    config = run.config
    flops = 3 * forward_flops(config.model, config.data.sequence_length) * config.training.global_batch_size

    assert value(shown(folder), "MFU") == f"{flops / 0.1 / 989e12 / 2:.1%}"


@pytest.mark.parametrize(
    ("device", "ranks"),
    [
        pytest.param("NVIDIA H100 80GB HBM3", "many", id="ranks that are no number"),
        pytest.param("unknown", 2, id="unknown device"),
        pytest.param("NVIDIA H100 PCIe", 2, id="variant with another peak"),
    ],
)
def test_no_utilization(on_device: Callable[[str, object], RunFolder], device: str, ranks: object) -> None:
    assert "MFU" not in shown(on_device(device, ranks)).headlines


class BestCase(NamedTuple):
    """Runs and which is marked as the best."""

    folders: list[RunFolder]
    best: list[bool]


@pytest.fixture
def compared(data_directory: Path, tmp_path: Path) -> BestCase:
    """Write three runs, the second one having the lowest losses, and a new one without losses."""
    folders = [make_run(tmp_path / str(seed), data_directory, seed=seed) for seed in (2000, 1, 3000)]
    new = make_run(tmp_path / "new", data_directory)
    cut(new, 0)
    return BestCase([*folders, new], [False, True, False, False])


def test_lowest_losses_are_marked(compared: BestCase) -> None:
    runs = progress_of(compared.folders)

    assert is_best(runs, "loss") == compared.best
    assert is_best(runs, "validation") == compared.best


def test_validation_losses_on_different_samples_are_not_compared(compared: BestCase) -> None:
    select_first_samples(compared.folders[0])

    runs = progress_of(compared.folders)

    assert is_best(runs, "loss") == compared.best
    assert is_best(runs, "validation") == [False, False, False, False]


def test_losses_on_different_data_are_not_compared(compared: BestCase) -> None:
    config = compared.folders[0].config
    config.write_text(config.read_text().replace('"sequence_length": 32', '"sequence_length": 16'))

    assert is_best(progress_of(compared.folders), "loss") == [False, False, False, False]

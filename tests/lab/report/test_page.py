"""megatape report without a browser: pages of finished, training and corrupted runs."""

import base64
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from megatape.data.shards.index import load_index
from megatape.lab.report.curves import MAX_POINTS
from megatape.lab.report.load import load_runs
from megatape.lab.report.page import watch_report
from megatape.lab.report.positions import MAX_MAPS, MAX_STEPS
from megatape.lab.tasks.engine.result import Measure
from megatape.reliability.run_log import event_entry
from megatape.run_folder import RunFolder
from megatape.training.position_views.view import PositionView
from megatape.utils.json_lines import append_lines
from tests.helpers.processes.command import Command
from tests.helpers.runs.report_folders import HOSTILE, OWN_MODULE, make_results, make_run, train_with_own_module


class ReportPage(NamedTuple):
    """Page of a report.

    Attributes:
        text: HTML, without places where a name may be broken.
        content: Data of its charts.
        errors: Text that the command printed as errors.
    """

    text: str
    content: dict[str, Any]
    errors: str


def page_of(command: Command, output: Path, *words: object) -> ReportPage:
    status, printed, errors = command("report", *words, "--output", output)
    assert status == 0, errors
    page = output / "index.html"
    assert f"wrote {page}" in printed
    assert list(output.iterdir()) == [page]
    text = page.read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data
    return ReportPage(text.replace("<wbr>", ""), json.loads(data[1], parse_constant=pytest.fail), errors)


def curve(content: dict[str, Any], title: str, group: int, style: str = "line") -> dict[str, list[float]]:
    """Return a curve of a chart, without its group and style."""
    (chart,) = [chart for chart in content["charts"] if chart["title"] == title]
    (series,) = [series for series in chart["series"] if series["group"] == group and series["style"] == style]
    return {name: series[name] for name in ("x", "y", "low", "high")}


def losses(folder: RunFolder) -> list[float]:
    return [json.loads(line)["loss"] for line in folder.metrics.read_text().splitlines()]


def cells(text: str, label: str) -> list[str]:
    """Return the cells of the first table row with this label."""
    row = re.search(rf"<tr[^>]*><th scope=\"row\">{re.escape(label)}</th>(.*?)</tr>", text)
    assert row, label
    return [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row[1])]


def test_runs_with_own_modules_need_no_import(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """Losses and settings need no code, only the numbers of parameters do."""
    own = make_run(tmp_path / "own", data_directory)
    rope = make_run(tmp_path / "rope", data_directory, encoding="rope")
    train_with_own_module(own)
    text, content, errors = page_of(command, tmp_path / "page", own.directory, rope.directory)
    assert not errors
    assert curve(content, "Loss", 0)["y"] == pytest.approx(losses(own), rel=1e-5)
    assert cells(text, "optimizer.momentum") == ["0.75", ""]
    assert cells(text, "model.encoding") == ["own", "rope"]
    unknown, known = cells(text, "parameters")
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
    """Names of encodings are not."""
    folder = make_run(tmp_path / "run", data_directory)
    train_with_own_module(folder)
    raw = json.loads(folder.config.read_text())
    raw["model"]["num_layers"] = "many"
    folder.config.write_text(json.dumps(raw))

    status, _, errors = command("report", folder.directory, "--output", tmp_path / "page")

    assert status == 2
    assert "model.num_layers" in errors
    assert "many" in errors


class Comparison(NamedTuple):
    """Report on two runs of tape that differ only in their seed, and a shorter one of rope.

    Attributes:
        seeds: Runs of tape.
        page: Page of the report.
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

    assert cells(text, "steps") == ["20 of 20", "20 of 20", "10 of 10"]
    assert cells(text, "model.encoding") == ["tape", "tape", "rope"]
    assert cells(text, "training.seed") == ["1", "1001", "1234"]
    assert "4 checkpoints" in text
    assert "5 to 20" in text


def test_runs_on_different_validation_samples(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """An earlier version did not record its selection of samples. Its run and a new run share no line, and a note says so."""
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
    assert cells(text, "validation samples") == ["the first 8", "8, evenly spaced"]


def test_validation_loss_of_each_input(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """The overview has the losses of the last evaluation, without values that are not numbers."""
    run = make_run(tmp_path / "run", data_directory)
    *lines, last = run.metrics.read_text().splitlines(keepends=True)
    parts = '"validation_losses": {"texts/a": 4.5, "texts/b": 5.25, "bad": "x"}, "validation_selection"'
    run.metrics.write_text("".join(lines) + last.replace('"validation_selection"', parts))
    text, _, errors = page_of(command, tmp_path / "out", run.directory)
    assert not errors
    assert cells(text, "validation loss of parts") == ["texts/a 4.5000, texts/b 5.2500"]


def test_runs_with_the_same_seed(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """Their band is not called a spread over seeds."""
    runs = [make_run(tmp_path / name, data_directory) for name in ("tape-1", "tape-2")]
    _, content, _ = page_of(command, tmp_path / "out", *(run.directory for run in runs))
    assert content["labels"] == ["tape (2 runs)"]


def lower_triangle(encoded: str, limit: float) -> np.ndarray:
    """Return the values of a map, which has a byte for each pair of positions."""
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
    """The run resumed from step 20, so the view of step 25 belongs to discarded steps."""
    run = make_run(tmp_path / "run", data_directory, steps=20, evaluated=5, num_layers=4)
    PositionView.load(run.position_view(15)).save(run, 25)
    run.position_view(10).write_bytes(b"")

    text, content, errors = page_of(command, tmp_path / "out", run.directory)

    (view,) = content["views"]
    assert view["steps"] == [5, 15, 20]
    assert "step-00000010.safetensors is corrupted" in errors
    assert "step-00000010.safetensors is corrupted" in text


def test_position_views_of_entries(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """A vector has as many entries as there are heads here, but they are not those of heads."""
    run = make_run(tmp_path / "vector", data_directory, encoding="tape_vector", steps=20, evaluated=5)

    _, content, _ = page_of(command, tmp_path / "out", run.directory)

    assert content["views"][0]["by"] == "entry"


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
        detail = json.dumps(HOSTILE + "f\udcfcr")  # of a file name in Latin-1
        file.write(f'{{"time": 1e99, "event": "failed", "step": 22, "detail": {detail}}}\n{{"time": 3}}\n{{"ti')
    new = make_run(tmp_path / "new", data_directory, steps=1)
    for path in (new.metrics, new.events):
        path.unlink()
    text, content, _ = page_of(command, tmp_path / "out", run.directory, new.directory)
    assert curve(content, "Loss", 0)["x"] == list(range(1, 21))
    assert cells(text, "steps") == ["22 of 20", "0 of 1"]
    assert "No events were recorded" in text
    assert "<img" not in text
    assert "&lt;img src=x" in text
    assert "f\\udcfcr" in text
    assert "\\u003cimg src=x" in text


def test_evaluations_are_grouped_by_task_and_settings(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """They are found below a run and in other folders, and each group has the paper's figures once."""
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
    (tmp_path / "more/b/number.png").write_bytes(b"\x89PNG")  # of one number, which the table has
    (tmp_path / "more/c/large.png").write_bytes(b"0" * 2**21)
    text, _, errors = page_of(command, tmp_path / "out", run.directory, "--evaluations", tmp_path / "more", tmp_path / "more/b")
    assert re.findall(r"<h3>(perplexity|passkey)</h3>", text) == ["passkey", "perplexity", "perplexity"]
    assert cells(text, "a") == [" (9)"]
    assert "1.235 <span" in text
    assert "± 0.01" in text
    assert "(12,345)" in text
    assert text.count("paper: TAPE") == 2
    assert cells(text, "paper: TAPE") == ["1.25", ""]
    assert text.count("(12,345)") == 1
    assert "paper: LoRA" not in text
    assert "at 8192" not in text  # of lengths that were not asked for
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


@pytest.fixture
def run(data_directory: Path, tmp_path: Path) -> RunFolder:
    return make_run(tmp_path / "run", data_directory)


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

    assert_report_refused(command, out, tmp_path / "nowhere", message="nowhere: give the folder of a run")
    assert_report_refused(command, out, tmp_path / "empty", message="empty holds no run: it has no config.json")
    assert_report_refused(command, out, tmp_path / "loop", message="loop: give the folder of a run")


def test_repeated_runs_are_refused(command: Command, run: RunFolder, tmp_path: Path) -> None:
    again = run.directory / "../run"

    assert_report_refused(command, tmp_path / "out", run.directory, again, message="is given twice")


def test_missing_folder_of_evaluations_is_refused(command: Command, run: RunFolder, tmp_path: Path) -> None:
    words = (run.directory, "--evaluations", tmp_path / "nothing")

    assert_report_refused(command, tmp_path / "out", *words, message="nothing: give one below which")


def test_existing_output_is_refused(command: Command, run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    status, _, errors = command("report", run.directory, "--output", tmp_path / "empty")

    assert status == 2
    assert "empty exists: remove it or choose another name" in errors


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


def record_environment(run: RunFolder, environment: object) -> None:
    append_lines(run.events, [event_entry("resumed", 20, "") | {"environment": environment}])


def test_environment_of_the_last_start_is_shown(command: Command, run: RunFolder, tmp_path: Path) -> None:
    record_environment(
        run,
        {
            "command": f"megatape pretrain {HOSTILE}",
            "device": "TPU",
            "ranks": 16,
            "hosts": 2,
            "megatape": "1 (commit ab)",
            "python/torch/deepspeed": "3/2",
        },
    )

    text, _, _ = page_of(command, tmp_path / "out", run.directory)

    assert cells(text, "ranks") == ["16 ranks on 2 hosts"]
    assert cells(text, "code") == ["MegaTAPE 1 (commit ab)"]
    assert cells(text, "software") == ["Python 3, torch 2"]
    assert "pretrain &lt;img" in cells(text, "command")[0]


def test_run_of_an_earlier_version_has_no_environment(command: Command, run: RunFolder, tmp_path: Path) -> None:
    text, _, _ = page_of(command, tmp_path / "out", run.directory)

    assert 'row">device' not in text
    assert 'row">command' not in text


def test_malformed_environment_is_left_out(command: Command, run: RunFolder, tmp_path: Path) -> None:
    record_environment(run, {"device": "TPU"})
    record_environment(run, ["no object"])

    text, _, _ = page_of(command, tmp_path / "out", run.directory)

    assert 'row">device' not in text


def test_data_for_fine_tuning(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """The page counts examples and the tokens of their answers, which a model learns, instead of documents."""
    lines = [json.dumps({"prompt": f"{number}?", "answer": f"the fox {number}"}) for number in range(40)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    tokenizer = data_directory / "tokenizer.model"
    pairs = tmp_path / "pairs"
    options = ("--format", "pairs", "--tokenizer", tokenizer, "--sequence-length", 64, "--validation-share", 0.25)
    status, _, errors = command("prepare", "finetuning", *options, "--input", tmp_path / "pairs.jsonl", "--output", pairs)
    assert status == 0, errors
    run = make_run(tmp_path / "run", pairs)
    text = page_of(command, tmp_path / "out", run.directory)[0]
    answers = load_index(pairs).answers
    for row, split in {"training": "train", "validation": "validation"}.items():
        (cell,) = cells(text, row)
        assert cell.startswith(f"{answers[split].examples} examples, {answers[split].tokens} of ")
        assert "documents" not in cell
    assert sum(split.examples for split in answers.values()) == 40
    status, _, errors = command("data", "report", pairs, "--output", tmp_path / "data")
    assert status == 0, errors
    page = (tmp_path / "data/index.html").read_text()
    assert cells(page, "examples") == [str(split.examples) for split in answers.values()]
    assert 'row">documents' not in page


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_watched_page_follows_a_run(run: RunFolder, tmp_path: Path) -> None:
    """Nothing is written into the folder of the run, and a complete page no longer reloads."""
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
    """A page of an earlier report is replaced."""
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

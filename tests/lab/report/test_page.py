"""megatape report without a browser: what the page says of runs, whole, training or corrupted."""

import base64
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

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


def page_of(command: Command, output: Path, *words: object) -> tuple[str, dict[str, Any], str]:
    """The page, the data of its charts, and what the command printed as errors."""
    status, printed, errors = command("report", *words, "--output", output)
    assert status == 0, errors
    page = output / "index.html"
    assert f"wrote {page}" in printed and [path.name for path in output.iterdir()] == [page.name]
    text = page.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    text = text.replace("<wbr>", "")  # where a name may be broken
    return text, json.loads(found[1], parse_constant=pytest.fail), errors


def curve(content: dict[str, Any], title: str, group: int, style: str = "line") -> dict[str, list[float]]:
    """A curve of a chart, without its group and style."""
    (chart,) = (chart for chart in content["charts"] if chart["title"] == title)
    (found,) = (series for series in chart["series"] if (series["group"], series["style"]) == (group, style))
    return {name: found[name] for name in ("x", "y", "low", "high")}


def losses(folder: RunFolder) -> list[float]:
    return [json.loads(line)["loss"] for line in folder.metrics.read_text().splitlines()]


def cells(text: str, label: str) -> list[str]:
    """The cells of the first table row that begins with this label."""
    row = re.search(rf"<tr[^>]*><th scope=\"row\">{re.escape(label)}</th>(.*?)</tr>", text)
    assert row, label
    return [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row[1])]


def test_runs_with_modules_of_a_user_s_own_need_no_import(command: Command, data_directory: Path, tmp_path: Path) -> None:
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


def test_a_name_that_is_not_of_a_module_is_refused(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """Types are checked even where names are not."""
    folder = make_run(tmp_path / "run", data_directory)
    text = folder.config.read_text()
    folder.config.write_text(text.replace('"encoding": "tape"', '"encoding": "tap"'))
    status, _, errors = command("report", folder.directory, "--output", tmp_path / "page")
    assert status == 2
    assert "model.encoding" in errors and "did you mean tape?" in errors
    train_with_own_module(folder)
    raw = json.loads(folder.config.read_text())
    raw["model"]["num_layers"] = "many"
    folder.config.write_text(json.dumps(raw))
    status, _, errors = command("report", folder.directory, "--output", tmp_path / "page")
    assert status == 2
    assert "model.num_layers" in errors and "many" in errors


def test_runs_that_differ_only_in_their_seed(command: Command, data_directory: Path, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"tape/seed-{seed}", data_directory, seed=seed) for seed in (1, 1001)]
    rope = make_run(tmp_path / "rope", data_directory, encoding="rope", steps=10)
    text, content, errors = page_of(command, tmp_path / "out", *(run.directory for run in (*runs, rope)))
    assert not errors and content["labels"] == ["tape (2 seeds)", "rope"]
    found = curve(content, "Loss", 0)
    both = np.array([losses(run) for run in runs])
    for name, expected in {"y": both.mean(0), "low": both[0], "high": both[1], "x": np.arange(1, 21)}.items():
        assert found[name] == pytest.approx(expected.tolist(), rel=1e-5), name
    assert curve(content, "Loss", 0, "points")["x"] == [5, 10, 15, 20]
    assert curve(content, "Throughput", 1)["y"] == [2560] * 10 and curve(content, "Peak memory", 1)["y"] == [1] * 10
    (entropy,) = content["charts"][0]["lines"]
    assert 3 < entropy["y"] < 6 and entropy["label"] == "unigram entropy"
    assert cells(text, "steps") == ["20 of 20"] * 2 + ["10 of 10"] and cells(text, "model.encoding") == ["tape", "tape", "rope"]
    assert cells(text, "training.seed") == ["1", "1001", "1234"] and "4 checkpoints" in text and "5 to 20" in text


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
    """Their band is no spread over seeds."""
    runs = [make_run(tmp_path / name, data_directory) for name in ("tape-1", "tape-2")]
    _, content, _ = page_of(command, tmp_path / "out", *(run.directory for run in runs))
    assert content["labels"] == ["tape (2 runs)"]


def test_position_view(command: Command, data_directory: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", data_directory, steps=20, evaluated=5, num_layers=4)
    original = PositionView.load(run.position_view(15))
    original.save(run, 25)  # the run went on from step 20
    run.position_view(10).write_bytes(b"")
    text, content, errors = page_of(command, tmp_path / "out", run.directory)
    (view,) = content["views"]
    assert view["steps"] == [5, 15, 20] and view["layers"] == [1, 2, 3, 4] and view["by"] == "head"
    assert "step-00000010.safetensors is corrupted" in errors and "step-00000010.safetensors is corrupted" in text
    rows, columns = np.tril_indices(16)
    for encoded, products, limit in zip(view["maps"][1], original.products, view["limits"], strict=True):
        decoded = np.frombuffer(base64.b64decode(encoded), np.int8) / 127 * limit
        assert np.abs(decoded - products[rows, columns].clip(-limit, limit)).max() <= limit / 127
    assert view["norms"][1] == pytest.approx(original.norms.tolist(), rel=1e-5)
    assert np.array(view["gains"][1]) == pytest.approx(original.gains, rel=1e-5)
    vector = make_run(tmp_path / "vector", data_directory, encoding="tape_vector", steps=20, evaluated=5)
    _, content, _ = page_of(command, tmp_path / "other", vector.directory)
    assert content["views"][0]["by"] == "entry"  # as many as heads here, and yet not theirs


def test_a_long_run_of_many_evaluations(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """One step of 100,000 with a large loss is still seen, and of 40 evaluations some."""
    run = make_run(tmp_path / "run", data_directory, steps=40, evaluated=1)
    lines = [{"step": step, "loss": 50.0 if step == 77_777 else 3.0, "lr": step * 1e-6} for step in range(1, 100_001)]
    run.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    _, content, _ = page_of(command, tmp_path / "out", run.directory)
    found = curve(content, "Loss", 0)
    assert len(found["x"]) == MAX_POINTS and max(found["high"]) == 50 and found["low"] == [3] * MAX_POINTS
    assert curve(content, "Learning rate", 0)["y"] == pytest.approx([x * 1e-6 for x in found["x"]], rel=1e-4)
    (view,) = content["views"]
    assert len(view["steps"]) == MAX_STEPS and view["steps"][0] == 1 and view["steps"][-1] == 40


def test_twenty_runs(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """Stay in the size that docs/watch.md states for their position views."""
    runs = [make_run(tmp_path / str(number), data_directory, evaluated=2, position_size=number + 1) for number in range(20)]
    _, content, _ = page_of(command, tmp_path / "out", *(run.directory for run in runs))
    assert len(content["labels"]) == 20 and content["labels"][3] == "3"
    assert 20 * 2 <= sum(len(step) for view in content["views"] for step in view["maps"]) <= MAX_MAPS


def test_a_run_that_is_training(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """A line that is being written, a loss that is NaN, numbers that are none, a file name that is not UTF-8; and a run before
    its first step."""
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
    assert cells(text, "steps") == ["22 of 20", "0 of 1"] and "No events were recorded" in text
    assert "<img" not in text and "&lt;img src=x" in text and "f\\udcfcr" in text and "\\u003cimg src=x" in text


def test_evaluations(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """Those below a run and in other folders, by task and settings, each with the paper's figures once."""
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
    assert cells(text, "a") == [" (9)"] and "1.235 <span" in text and "± 0.01" in text and "(12,345)" in text
    assert text.count("paper: TAPE") == 2 and cells(text, "paper: TAPE") == ["1.25", ""]
    assert text.count("(12,345)") == 1
    assert "paper: LoRA" not in text and "at 8192" not in text  # of lengths that were not asked for
    assert text.count("&lt;img src=x") == 1 and text.count('src="data:image/png;base64,iVBORw=="') == text.count("<img") == 1
    assert text.count('<source media="(prefers-color-scheme: dark)" srcset="data:image/png;base64,iVBORyBvbiBibGFjaw==">') == 1
    for file, reason in {
        "c/large.png": "it is larger than 1.00 MiB",
        "e/results.json": "format: must be 1, got ",
        "e2/results.json": "nested more than 64 levels",
    }.items():
        assert re.search(f"more/{file} is not shown.*{reason}", errors) and f"more/{file} is not shown" in text


def test_bad_input(command: Command, data_directory: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", data_directory).directory
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    cases: dict[str, list[object]] = {
        "nowhere: give the folder of a run": [tmp_path / "nowhere"],
        "empty holds no run: it has no config.json": [tmp_path / "empty"],
        "loop: give the folder of a run": [tmp_path / "loop"],
        "is given twice": [run, run / "../run"],
        "nothing: give one below which": [run, "--evaluations", tmp_path / "nothing"],
    }
    for fault, words in cases.items():
        status, _, errors = command("report", *words, "--output", tmp_path / "out")
        assert status == 2 and fault in errors and errors.count("\n") == 1, errors
        assert not (tmp_path / "out").exists()
    status, _, errors = command("report", run, "--output", tmp_path / "empty")
    assert status == 2 and "empty exists: remove it or choose another name" in errors


def test_names(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """What the paths have in common is no part of a name, wherever it is; names of fields break after dots and underscores."""
    folders = [tmp_path / f"suite/{encoding}/rate-0.001/seed-1" for encoding in ("rope", "tape")]
    for folder in folders:
        make_run(folder, data_directory, steps=1, encoding=folder.parts[-3])
    assert page_of(command, tmp_path / "out", *folders)[1]["labels"] == ["rope", "tape"]
    far = make_run(tmp_path / "elsewhere/far/away/third", data_directory, steps=1, encoding="alibi").directory
    near = [make_run(tmp_path / name, data_directory, steps=1, seed=seed).directory for seed, name in enumerate(("a", "b/c"))]
    assert [run.name for run in load_runs([far, *near])] == ["third", "a", "c"]
    raw = (tmp_path / "out/index.html").read_text()
    assert "model.<wbr>encoding</th>" in raw and re.search(r'<details id="differences"><summary>\d+ field', raw)


def test_environment(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """What the last start recorded; a run of an earlier version records nothing, and one may record anything."""
    run = make_run(tmp_path / "run", data_directory)
    earlier = page_of(command, tmp_path / "earlier", run.directory)[0]
    assert 'row">device' not in earlier and 'row">command' not in earlier
    environment = {
        "command": f"megatape pretrain {HOSTILE}",
        "device": "TPU",
        "ranks": 16,
        "hosts": 2,
        "megatape": "1 (commit ab)",
    }
    append_lines(
        run.events, [event_entry("resumed", 20, "") | {"environment": environment | {"python/torch/deepspeed": "3/2"}}]
    )
    text = page_of(command, tmp_path / "out", run.directory)[0]
    assert cells(text, "ranks") == ["16 ranks on 2 hosts"] and cells(text, "code") == ["MegaTAPE 1 (commit ab)"]
    assert cells(text, "software") == ["Python 3, torch 2"] and "pretrain &lt;img" in cells(text, "command")[0]
    append_lines(run.events, [event_entry("resumed", 20, "") | {"environment": ["no object"]}])
    assert 'row">device' not in page_of(command, tmp_path / "odd", run.directory)[0]


def test_fine_tuning_data(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """Examples and the tokens of their answers, of which a model learns, and no documents."""
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
        assert cell.startswith(f"{answers[split].examples} examples, {answers[split].tokens} of ") and "documents" not in cell
    assert sum(split.examples for split in answers.values()) == 40
    status, _, errors = command("data", "report", pairs, "--output", tmp_path / "data")
    assert status == 0, errors
    page = (tmp_path / "data/index.html").read_text()
    assert cells(page, "examples") == [str(split.examples) for split in answers.values()] and 'row">documents' not in page


def test_watch(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """Again while a run goes on, and nothing is written into its folder; a page that is complete reloads no more."""
    run = make_run(tmp_path / "run", data_directory)
    lines = run.metrics.read_text().splitlines(keepends=True)
    run.metrics.write_text("".join(lines[:12]))
    before = {path: path.read_bytes() for path in run.directory.rglob("*") if path.is_file()}
    pages = watch_report([run.directory], [], tmp_path / "out", 0.01)
    page, _ = next(pages)
    assert {path: path.read_bytes() for path in run.directory.rglob("*") if path.is_file()} == before
    assert 'data-refresh="0.01"' in page.read_text() and "<b>12</b> of 20" in page.read_text()
    config = run.config.read_bytes()
    run.config.write_text("{")
    append_lines(run.metrics, [json.loads(lines[12])])
    assert "the page stays as it was" in next(pages)[1][0] and "<b>12</b> of 20" in page.read_text()
    run.config.write_bytes(config)
    append_lines(run.metrics, map(json.loads, lines[13:]))
    assert next(pages) == (page, []) and next(pages, None) is None
    assert "data-refresh" not in page.read_text() and "<b>20</b> of 20" in page.read_text()

    status, printed, errors = command("report", run.directory, "--output", tmp_path / "out", "--watch", "1")
    assert status == 0 and "no longer reload" in printed, errors
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/index.html").write_text("<html>")
    status, _, errors = command("report", run.directory, "--output", tmp_path / "mine", "--watch")
    assert status == 2 and "mine exists" in errors and (tmp_path / "mine/index.html").read_text() == "<html>"

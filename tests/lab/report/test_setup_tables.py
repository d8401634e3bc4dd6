"""Report tables about how runs are set up: environment, validation losses, and data."""

import json
from pathlib import Path

from megatape.data.shards.index import load_index
from megatape.reliability.run_log import event_entry
from megatape.run_folder import RunFolder
from megatape.utils.files.json_lines import append_lines
from tests.helpers.lab.report_pages import page_of, row_cells
from tests.helpers.processes.command import Command
from tests.helpers.runs.report_folders import HOSTILE, make_run


def test_validation_loss_of_each_input(command: Command, data_directory: Path, tmp_path: Path) -> None:
    """The overview has the last evaluation's losses, leaving out values that are not numbers."""
    run = make_run(tmp_path / "run", data_directory)
    *lines, last = run.metrics.read_text().splitlines(keepends=True)
    parts = '"validation_losses": {"texts/a": 4.5, "texts/b": 5.25, "bad": "x"}, "validation_selection"'
    run.metrics.write_text("".join(lines) + last.replace('"validation_selection"', parts))
    text, _, errors = page_of(command, tmp_path / "out", run.directory)
    assert not errors
    assert row_cells(text, "validation loss of parts") == ["texts/a 4.5000, texts/b 5.2500"]


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

    assert row_cells(text, "ranks") == ["16 ranks on 2 hosts"]
    assert row_cells(text, "code") == ["MegaTAPE 1 (commit ab)"]
    assert row_cells(text, "software") == ["Python 3, torch 2"]
    assert "pretrain &lt;img" in row_cells(text, "command")[0]


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
    """Instead of documents, the page counts examples and the tokens in their answers, which a model learns."""
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
        (cell,) = row_cells(text, row)
        assert cell.startswith(f"{answers[split].examples} examples, {answers[split].tokens} of ")
        assert "documents" not in cell
    assert sum(split.examples for split in answers.values()) == 40
    status, _, errors = command("data", "report", pairs, "--output", tmp_path / "data")
    assert status == 0, errors
    page = (tmp_path / "data/index.html").read_text()
    assert row_cells(page, "examples") == [str(split.examples) for split in answers.values()]
    assert 'row">documents' not in page

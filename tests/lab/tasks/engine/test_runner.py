"""Evaluations of several models, by several tasks, and on several ranks."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from megatape.hf.exporting.exporter import export
from megatape.lab.tasks.engine.runner import name_models
from megatape.lab.tasks.passkey.task import Passkey
from megatape.lab.tasks.perplexity.task import Perplexity
from tests.helpers.lab.evaluations import GRID, LENGTHS, QUICK, Evaluate, assert_evaluated, both_tasks, content, interrupt
from tests.helpers.models.memory_checkpoint import memory_checkpoint
from tests.helpers.processes.command import Command, assert_refused
from tests.helpers.processes.workers import WITH_TRANSFORMERS, Workers


def test_model_that_links_to_itself_is_refused(evaluate: Evaluate, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")

    _, _, errors = evaluate(tmp_path / "loop")

    assert "loop: no such folder" in errors


def test_data_from_a_pipe_is_refused(command: Command, model: Path, tmp_path: Path) -> None:
    """Reading it would wait forever."""
    os.mkfifo(tmp_path / "pipe")

    _, _, errors = command("evaluate", "perplexity", model, "--data", tmp_path / "pipe", "--output", tmp_path / "out")

    assert "pipe is a device or a pipe: give a text file" in errors


@pytest.mark.slow
def test_several_ranks_give_the_results_of_one(
    evaluate: Evaluate, model: Path, folder: Path, data_directory: Path, tmp_path: Path
) -> None:
    """Results are equal to the last bit."""
    assert_evaluated(evaluate(model))
    out = tmp_path / "distributed"
    words = ["evaluate", "perplexity", str(model), "--data", str(data_directory), *LENGTHS, "--output", str(out)]

    with Workers(words, 4, tmp_path / "workers", imports=WITH_TRANSFORMERS) as workers:
        assert workers.statuses() == [0] * 4, workers.logs()

    assert content(out / "perplexity" / model.name) == content(folder)


def test_several_models_share_a_table(command: Command, data_directory: Path, model: Path, tmp_path: Path) -> None:
    """The table has a row for each model, in the file and printed, and every model has results of its own."""
    other = tmp_path / "other"
    checkpoint, _ = memory_checkpoint(data_directory / "tokenizer.model", encoding="rope")
    export(checkpoint, other)
    words = ("--data", data_directory, "--lengths", "64", "--mode", "authors", "--max-tokens", 1000)

    status, printed, errors = command("evaluate", "perplexity", model, other, *words, "--output", tmp_path / "out")

    assert status == 0, errors
    folder = tmp_path / "out" / "perplexity"
    rows = (folder / "results.md").read_text().splitlines()
    assert [row.split("|")[1].strip() for row in rows[2:]] == ["exported", "other"]
    for row in rows:
        assert row in printed
    lines = printed.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("exported: perplexity"))
    assert [line.partition(": perplexity")[0] for line in lines[first - 1 : first + 3]] == ["", "exported", "other", ""]

    results = json.loads((folder / "exported" / "results.json").read_text())
    other_results = json.loads((folder / "other" / "results.json").read_text())
    assert results["model"]["sha256"] != other_results["model"]["sha256"]
    assert results["settings"] == {
        "data": str(data_directory),
        "lengths": [64],
        "mode": "authors",
        "stride": None,
        "max_tokens": 1000,
    }
    assert results["measures"][0]["n"] == 63 * 4
    assert set(results["versions"]) > {"transformers"}
    assert results["paper"]["TAPE, Llama 2 7B on PG19"]["perplexity at 8192"] == 7.063


def test_settings_of_the_second_task_are_checked_before_the_first_runs(
    command: Command, data_directory: Path, model: Path, tmp_path: Path
) -> None:
    words = ("--data", data_directory, "--lengths", "64", "--mode", "authors", "--max-tokens", 1000)

    status, _, errors = command("evaluate", "perplexity,passkey", model, *words, "--output", tmp_path / "both")

    assert status == 2
    assert "error: task passkey: --lengths 64" in errors
    assert "--lengths 64 is too short for --protocol authors" in errors
    assert not (tmp_path / "both").exists()


def test_any_name_of_a_model(evaluate: Evaluate, model: Path, tmp_path: Path) -> None:
    """A table needs its bars escaped, and matplotlib searches a picture's title for formulas."""
    odd = tmp_path / "a|b $\\frac$"
    shutil.copytree(model, odd)

    assert_evaluated(evaluate(odd, settings=QUICK))

    rows = (tmp_path / "out" / "perplexity" / "results.md").read_text(encoding="utf-8").splitlines()
    assert rows[2].startswith("| a\\|b $\\frac$ |")


def test_full_gpu_is_reported(evaluate: Evaluate, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nMore")

    monkeypatch.setattr(Perplexity, "run", run)

    assert_refused(evaluate(model), "does not fit on the GPU (CUDA out of memory. Tried to allocate 2 GiB): divide it")


def test_folder_names_of_checkpoints() -> None:
    tape = Path("/runs/tape/checkpoints/step-00000010")
    rope = Path("/runs/rope/checkpoints/step-00000010")

    assert name_models([tape, rope, Path("/exported")]) == [
        "tape_checkpoints_step-00000010",
        "rope_checkpoints_step-00000010",
        "exported",
    ]


def test_folder_names_lead_nowhere_else() -> None:
    assert name_models([Path("/model"), Path("/data/model")]) == ["model", "data_model"]


def test_models_with_one_folder_name_are_refused() -> None:
    with pytest.raises(ValueError, match="results of b/a and of another model would both be in b_a: rename"):
        name_models([Path("b/a"), Path("c/a"), Path("b_a")])


def test_repeated_models_are_refused() -> None:
    with pytest.raises(ValueError, match="/exported is given twice"):
        name_models([Path("/exported"), Path("/a/../exported")])


@pytest.fixture
def perplexity_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models that predict for perplexity, which they don't in this test."""
    names: list[str] = []
    monkeypatch.setattr(Perplexity, "run", lambda self, model, batch: names.append(model.name))
    return names


def test_nothing_runs_if_the_second_task_has_results_of_other_settings(
    command: Command, data_directory: Path, long: Path, tmp_path: Path, perplexity_runs: list[str]
) -> None:
    out = tmp_path / "out"
    assert_evaluated(command("evaluate", "passkey", long, "--lengths", 400, *GRID, "--output", out))

    words = (*both_tasks(data_directory, out, long), "--passkey-lengths", 401)
    status, printed, errors = command(*words)

    assert status == 2
    assert "settings.lengths is [400] there and [401] here" in errors
    assert printed == ""
    assert perplexity_runs == []


def test_nothing_runs_if_the_second_model_lacks_a_length(
    command: Command, data_directory: Path, long: Path, tmp_path: Path, perplexity_runs: list[str]
) -> None:
    small = tmp_path / "small"
    checkpoint, _ = memory_checkpoint(data_directory / "tokenizer.model", max_positions=64)
    export(checkpoint, small)

    words = (*both_tasks(data_directory, tmp_path / "out", long, small), "--passkey-lengths", 400)
    status, printed, errors = command(*words)

    assert status == 2
    assert "error: task passkey: --lengths 400: " in errors
    assert str(small) in errors
    assert printed == ""
    assert perplexity_runs == []


def test_results_of_a_finished_task_stay_when_the_next_one_fails(
    command: Command, data_directory: Path, long: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command then evaluates only the other task."""
    out = tmp_path / "out"
    words = (*both_tasks(data_directory, out, long), "--passkey-lengths", 400)

    with monkeypatch.context() as patch:
        patch.setattr(Passkey, "run", interrupt)
        status, printed, errors = command(*words)
    assert status == 130
    assert "run the same command again to continue" in errors
    assert "long: perplexity (" in printed
    table = out / "perplexity" / "results.md"
    results = out / "perplexity" / "long" / "results.json"
    expected_table = table.read_bytes()
    expected_results = results.read_bytes()
    assert not list((out / "passkey").rglob("results.*"))

    monkeypatch.setattr(Perplexity, "run", interrupt)
    assert_evaluated(command(*words))
    assert table.read_bytes() == expected_table
    assert results.read_bytes() == expected_results

"""The frame of `megatape evaluate`: folders, tables, evaluations that were stopped, and ranks that divide the work."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.hf.export import export
from megatape.registry import TASKS
from megatape.runtime import exchange
from megatape.runtime.topology import Topology
from megatape.tasks import ranks
from megatape.tasks.models import name_models
from megatape.tasks.perplexity import Perplexity
from megatape.tasks.ranks import FailedElsewhere
from tests.conftest import Command
from tests.helpers.memory_checkpoint import memory_checkpoint
from tests.workers import WITH_TRANSFORMERS, Workers

Evaluate = Callable[..., tuple[int, str, str]]
LENGTHS = ("--lengths", "32,64", "--max-tokens", "1500", "--mode", "sliding", "--stride", "4")
BATCHES = 3 + 6  # at most 4096 tokens each, of 359 windows of each length


@pytest.fixture(scope="module")
def model(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "exported"
    checkpoint, _ = memory_checkpoint(data_directory / "tokenizer.model")
    export(checkpoint, folder)
    return folder


@pytest.fixture
def evaluate(command: Command, data_directory: Path, tmp_path: Path) -> Evaluate:
    def run(*models: Path, settings: tuple[object, ...] = LENGTHS) -> tuple[int, str, str]:
        return command("evaluate", "perplexity", *models, "--data", data_directory, *settings, "--output", tmp_path / "out")

    return run


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".png"}


def test_one_that_was_stopped_goes_on(evaluate: Evaluate, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after every batch, each time with a torn last line: every batch is answered once, the results are equal."""
    folder, run = tmp_path / "out" / "perplexity" / model.name, Perplexity.run
    answered: list[tuple[int, int]] = []
    assert evaluate(model)[0] == 0
    whole = content(folder)
    shutil.rmtree(tmp_path / "out")

    def stopping(self: Perplexity, model: Any, batch: Any) -> Any:
        if stop.pop():
            raise KeyboardInterrupt
        answered.append((batch[0].length, batch[0].begin))
        return run(self, model, batch)

    monkeypatch.setattr(Perplexity, "run", stopping)
    statuses: list[int] = []
    while 0 not in statuses:
        stop = [True, False] if len(answered) < BATCHES else []
        statuses.append(evaluate(model)[0])
        if statuses[-1]:
            assert not (folder / "results.json").exists()
            with (folder / "samples-0.jsonl").open("a") as file:
                file.write('\n{"example": 0, "length')
    assert statuses == [130] * (BATCHES - 1) + [0]  # after the last one it does not come to a stop
    assert len(set(answered)) == len(answered) == BATCHES
    assert content(folder) == whole and len(whole["samples.jsonl"].splitlines()) == 2 * len(range(0, 1500 - 64, 4))

    stop = []  # nothing is left to answer
    assert evaluate(model)[0] == 0 and content(folder) == whole


def test_samples_that_were_altered_are_asked_again(
    evaluate: Evaluate, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, settings = tmp_path / "out" / "perplexity" / model.name, ("--lengths", "32", "--max-tokens", "500")
    assert evaluate(model, settings=settings)[0] == 0
    whole = content(folder)
    lines = whole["samples.jsonl"].decode().splitlines()
    forged = [json.loads(line) | change for line, change in zip(lines, FORGED, strict=False)]
    altered = [*map(json.dumps, [*forged, [], 7, None, {"example": []}]), *lines[len(forged) :]]
    (folder / "samples.jsonl").write_text("\n".join(altered))
    assert evaluate(model, settings=settings)[0] == 0 and content(folder) == whole


FORGED: list[dict[str, Any]] = [
    {"losses": "a"},
    {"losses": [float("nan")]},
    {"length": None},
    {"begin": 10**30},
    {"scored": 10**15},
    {"size": 1e300},
    {"example": 3},
    {"sha256": ""},
]


def test_only_with_the_same_settings(evaluate: Evaluate, model: Path, tmp_path: Path) -> None:
    settings = ("--lengths", "32", "--max-tokens", "500")
    assert evaluate(model, settings=settings)[0] == 0
    folder = tmp_path / "out" / "perplexity" / model.name
    before = content(folder)
    code, _, errors = evaluate(model, settings=("--lengths", "32", "--max-tokens", "600"))
    assert code == 2 and "settings.max_tokens is 500 there and 600 here: choose another --output" in errors
    changed = tmp_path / "changed" / model.name
    shutil.copytree(model, changed)
    (changed / "generation_config.json").write_text("{}")
    code, _, errors = evaluate(changed, settings=settings)
    assert code == 2 and f'model.name is "{model}" there and "{changed}" here' in errors
    assert content(folder) == before
    (folder / "settings.json").write_text("no JSON")
    assert "says of no evaluation what it is" in evaluate(model, settings=settings)[2]


def test_any_name_of_a_model(evaluate: Evaluate, model: Path, tmp_path: Path) -> None:
    """In the table, and in a picture's title, which matplotlib searches for formulas."""
    odd = tmp_path / "a|b $\\frac$"
    shutil.copytree(model, odd)
    status, _, errors = evaluate(odd, settings=("--lengths", "32", "--max-tokens", "500"))
    assert status == 0, errors
    rows = (tmp_path / "out" / "perplexity" / "results.md").read_text(encoding="utf-8").splitlines()
    assert rows[2].startswith("| a\\|b $\\frac$ |")


def test_paths_without_end(evaluate: Evaluate, command: Command, model: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert "loop: no such folder" in evaluate(tmp_path / "loop")[2]
    os.mkfifo(tmp_path / "pipe")
    errors = command("evaluate", "perplexity", model, "--data", tmp_path / "pipe", "--output", tmp_path / "out")[2]
    assert "pipe is a device or a pipe: give a text file" in errors


def test_only_with_the_same_text(evaluate: Evaluate, command: Command, model: Path, tmp_path: Path) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out"
    for content, status in (("some words. " * 40, 0), ("other words. " * 40, 2)):
        text.write_text(content)
        code, _, errors = command("evaluate", "perplexity", model, "--data", text, "--lengths", "32", "--output", out)
        assert code == status, errors
    assert "settings: examples." in errors


def test_a_full_gpu(evaluate: Evaluate, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nMore")

    monkeypatch.setattr(Perplexity, "run", run)
    code, _, errors = evaluate(model)
    assert code == 2 and "does not fit on the GPU (CUDA out of memory. Tried to allocate 2 GiB): divide it" in errors


def test_several_models_and_tasks(command: Command, data_directory: Path, model: Path, tmp_path: Path) -> None:
    """A row for each model, those of the paper where they have its columns, and samples with everything that was said."""
    other = tmp_path / "other"
    checkpoint, _ = memory_checkpoint(data_directory / "tokenizer.model", encoding="rope")
    export(checkpoint, other)
    words = ("--data", data_directory, "--lengths", "64", "--mode", "authors", "--max-tokens", 1000)
    status, printed, errors = command("evaluate", "perplexity", model, other, *words, "--output", tmp_path / "out")
    assert status == 0, errors
    rows = (tmp_path / "out" / "perplexity" / "results.md").read_text().splitlines()
    assert [row.split("|")[1].strip() for row in rows[2:]] == ["exported", "other"] and all(row in printed for row in rows)
    found = [
        json.loads((tmp_path / "out" / "perplexity" / name / "results.json").read_text()) for name in ("exported", "other")
    ]
    assert found[0]["model"]["sha256"] != found[1]["model"]["sha256"]
    assert found[0]["settings"] == {
        "data": str(data_directory),
        "lengths": [64],
        "mode": "authors",
        "stride": None,
        "max_tokens": 1000,
    }
    assert found[0]["measures"][0]["n"] == 63 * 4 and set(found[0]["versions"]) > {"transformers"}
    assert found[0]["paper"]["TAPE, Llama 2 7B on PG19"]["perplexity at 8192"] == 7.063

    status, _, errors = command("evaluate", "perplexity,passkey", model, *words, "--output", tmp_path / "both")
    assert status == 2 and "--lengths 64 is too short for --protocol authors" in errors
    assert (tmp_path / "both" / "perplexity" / "exported" / "results.json").exists()  # which was evaluated first


@pytest.mark.parametrize("tasks", ["perplexity,perplexity", "perplexity,nonsense", ""])
def test_unknown_tasks(command: Command, tasks: str) -> None:
    status, _, errors = command("evaluate", tasks, "a", "--output", "b")
    assert status == 2 and "give some of perplexity, passkey" in errors


def test_all_tasks_share_their_options(command: Command, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command("evaluate", ",".join(TASKS), "--help")
    assert "--lengths" in capfd.readouterr().out


def test_names() -> None:
    runs = [Path(f"/runs/{name}/checkpoints/step-00000010") for name in ("tape", "rope")]
    assert name_models([*runs, Path("/exported")]) == [
        "tape_checkpoints_step-00000010",
        "rope_checkpoints_step-00000010",
        "exported",
    ]
    with pytest.raises(ValueError, match="/exported is given twice"):
        name_models([Path("/exported"), Path("/a/../exported")])


@pytest.mark.slow
def test_ranks_agree(evaluate: Evaluate, model: Path, data_directory: Path, tmp_path: Path) -> None:
    """Several ranks give the results of one, to the last bit."""
    assert evaluate(model)[0] == 0
    out = tmp_path / "divided"
    words = ["evaluate", "perplexity", str(model), "--data", str(data_directory), *LENGTHS, "--output", str(out)]
    with Workers(words, 4, tmp_path / "workers", imports=WITH_TRANSFORMERS) as workers:
        assert workers.statuses() == [0] * 4, workers.logs()
    assert content(out / "perplexity" / model.name) == content(tmp_path / "out" / "perplexity" / model.name)


def test_the_main_rank_tells_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("the disk is full")

    full = ["builtins:OSError", "the disk is full", None]
    for rank, error in ((0, OSError), (1, FailedElsewhere)):
        monkeypatch.setattr(exchange, "exchange", lambda mine, *_: [mine, [None, full]])
        for work in (fail, lambda: None):  # this process, or only the other
            with pytest.raises(error, match="the disk is full" if rank == 0 else None):
                ranks.Ranks(Topology(rank, 2, rank), rank, 2).together(work)

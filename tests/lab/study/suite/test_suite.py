"""megatape study suite: training, scoring, resumption and errors."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatape.lab.report.suite_page import write_page
from megatape.lab.study.execution.children import Children
from megatape.lab.study.execution.lock import locked_study
from megatape.lab.study.execution.pool import RunPool
from megatape.lab.study.execution.run import RunsFailed
from megatape.lab.study.execution.study import Study
from megatape.lab.study.suite.plan import parse_plan
from megatape.lab.study.suite.scores.baselines import BASELINES
from megatape.lab.study.suite.scores.record_files import read_records
from megatape.lab.study.suite.sizes import SIZES
from megatape.lab.study.suite.suite import suite
from megatape.run_folder import RunFolder
from tests.helpers.lab.capitals import QUICK


def read_scores(run: Path, file: str = "scores.json") -> dict[str, Any]:
    """A file of a run; of metrics those of the first step."""
    text = (run / file).read_text()
    content: dict[str, Any] = json.loads(text.splitlines()[0] if file.endswith("l") else text)
    return content


def run(out: Path, seeds: int, rates: Sequence[float] = (1e-3, 1e-2), only: int | None = None) -> str:
    """Output of the command with two encodings."""
    plan = parse_plan("tiny", "capitals", "rope,tape", seeds, rates)
    return "\n".join(suite(plan, Study(out, RunPool(1, None), "typed"), write_page, only))


@pytest.mark.usefixtures("capitals", "quick_children")
def test_resumes_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = Children.run
    trained = []

    def stop_at_the_fourth(self: Children, words: list[str], environment: dict[str, str], log: Path) -> int:
        if "pretrain" in words:
            trained.append(log.parent.relative_to(tmp_path))
            if len(trained) == 4:
                raise KeyboardInterrupt
        return start(self, words, environment, log)

    monkeypatch.setattr(Children, "run", stop_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 1)
    assert {record.row for record in read_records(tmp_path / "results.jsonl")} == set(BASELINES)
    assert "capitals, tape: seeds 1 (not run yet, or failed)" in (tmp_path / "suite.md").read_text()
    printed = run(tmp_path, 1)
    losses = {
        (row, rate): read_scores(tmp_path / f"capitals/{row}/rate-{rate}/seed-0")["validation_loss"]
        for row in ("rope", "tape")
        for rate in (0.001, 0.01)
    }
    best = {row: min((0.001, 0.01), key=lambda rate: losses[row, rate]) for row in ("rope", "tape")}
    assert [str(folder) for folder in trained] == [
        "capitals/rope/rate-0.001/seed-0",
        "capitals/rope/rate-0.01/seed-0",
        "capitals/tape/rate-0.001/seed-0",
        *2 * ["capitals/tape/rate-0.01/seed-0"],  # stopped, and begun again
        *(f"capitals/{row}/rate-{rate}/seed-1" for row, rate in best.items()),
    ]
    assert f"capitals, tape, rate {best['tape']}, seed 1: validation loss" in printed

    records = read_records(tmp_path / "results.jsonl")
    assert [
        (record.row, record.split, record.seed, record.learning_rate) for record in records if record.kind == "encoding"
    ] == [(row, split, 1, best[row]) for split in ("long", "test") for row in ("rope", "tape")]
    assert {record.row for record in records} == {"rope", "tape", *BASELINES}
    assert (tmp_path / "suite.md").read_text().startswith("    typed\n")
    assert "`tape`" in printed
    # The same samples in the same order, and the same initial weights of all that both have.
    first, second = (read_scores(tmp_path / f"capitals/{row}/rate-0.01/seed-0", "metrics.jsonl") for row in ("rope", "tape"))
    assert first["digest"] == second["digest"]
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-5)

    monkeypatch.setitem(SIZES, "tiny", replace(QUICK, model=replace(QUICK.model, num_layers=3)))
    with pytest.raises(ValueError, match="was trained with model.num_layers 2, the configuration says 3"):
        run(tmp_path, 1)
    monkeypatch.setitem(SIZES, "tiny", replace(QUICK, tokens=5 * 4 * 6))
    with pytest.raises(ValueError, match="was written for samples"):
        run(tmp_path, 1)


@pytest.mark.usefixtures("capitals", "quick_children")
def test_task_of_an_array_job(tmp_path: Path) -> None:
    """Each trains one task and encoding. The tables have the results of all finished runs."""
    with pytest.raises(ValueError, match="cell is 2: the tasks and encodings have the numbers 0 to 1"):
        run(tmp_path, 1, [1e-3], only=2)
    assert "1 run, 1 of them to do" in (printed := run(tmp_path, 1, [1e-3], only=1))
    assert "capitals, rope: seeds 1 (not run yet, or failed)" in printed
    assert {record.row for record in read_records(tmp_path / "results.jsonl") if record.kind == "encoding"} == {"tape"}
    with locked_study(tmp_path / "capitals" / "tape"):  # another part does not wait for it
        assert "not run yet" not in run(tmp_path, 1, [1e-3], only=0)
        with pytest.raises(ValueError, match="is in use by another study"):
            run(tmp_path, 1, [1e-3], only=1)
    records = read_records(tmp_path / "results.jsonl")
    assert {record.row for record in records if record.kind == "encoding"} == {"rope", "tape"}


@pytest.mark.slow
@pytest.mark.usefixtures("capitals", "quick_children")
def test_diverged_learning_rate_is_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not tried again. A rate that failed for another reason is."""
    start = Children.run
    status = [3]
    tried = []

    def run_or_fail(self: Children, words: list[str], environment: dict[str, str], log: Path) -> int:
        if "optimizer.learning_rate=0.01" not in words:
            return start(self, words, environment, log)
        tried.append(log.parents[2].name)
        log.write_text("error: the weights have diverged\n")
        return status[0]

    monkeypatch.setattr(Children, "run", run_or_fail)
    with pytest.raises(RunsFailed, match="2 of 6 runs failed"):
        run(tmp_path, 1)
    assert {record.row for record in read_records(tmp_path / "results.jsonl")} == {"rope", "tape", *BASELINES}
    assert "capitals, rope: learning rate 0.01 (the weights diverged)" in (tmp_path / "suite.md").read_text()
    run(tmp_path, 1)
    assert tried == ["rope", "tape"]

    status[0] = 1
    with pytest.raises(RunsFailed, match="2 of 4 runs failed"):
        run(tmp_path / "other", 1)
    assert {record.row for record in read_records(tmp_path / "other" / "results.jsonl")} == set(BASELINES)


@pytest.mark.usefixtures("capitals", "quick_children")
def test_truncated_last_checkpoint(tmp_path: Path) -> None:
    """The command says what to remove. Then it trains the run again, with the same scores."""
    run(tmp_path, 1, rates=[1e-3])
    folder = RunFolder(tmp_path / "capitals/rope/rate-0.001/seed-1")
    scores = (folder.directory / "scores.json").read_bytes()
    (weights,) = folder.list_checkpoints()[0].glob("weight-*")
    os.truncate(weights, 100)
    (folder.directory / "scores.json").unlink()
    with pytest.raises(RunsFailed, match="none of the 1 checkpoints is valid .*; repair or remove them"):
        run(tmp_path, 1, rates=[1e-3])
    shutil.rmtree(folder.directory)
    run(tmp_path, 1, rates=[1e-3])
    same = (json.loads(text)["records"] for text in (scores, (folder.directory / "scores.json").read_bytes()))
    assert next(same) == next(same)


@pytest.mark.usefixtures("capitals", "measured_here")
def test_failed_run_is_reported(tmp_path: Path) -> None:
    plan = parse_plan("tiny", "capitals", "rope", 1, [1e-3])
    with pytest.raises(RunsFailed, match="capitals, rope, rate 0.001, seed 1: training exited with status 1"):
        list(suite(plan, Study(tmp_path, RunPool(1, "false"), "typed"), write_page))
    assert not RunFolder(tmp_path / "capitals/rope/rate-0.001/seed-1").list_checkpoints()

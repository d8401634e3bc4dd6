"""megatape study suite: training, scoring, resumption and errors."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

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

RATES = (1e-3, 1e-2)


def run(out: Path, seeds: int, rates: Sequence[float] = RATES, only: int | None = None) -> str:
    """Return the output of the command with two encodings."""
    plan = replace(parse_plan("tiny", "capitals", "rope,tape", seeds, rates), tuning_seeds=1, fixed_rates=True)
    shown: list[str] = []
    study = Study(out, RunPool(1, None), "typed", shown.append)
    suite(plan, study, only)
    return "\n".join(shown)


def encodings_with_results(out: Path) -> set[str]:
    return {record.contender for record in read_records(out / "results.jsonl") if record.kind == "encoding"}


def rows_with_results(out: Path) -> set[str]:
    """Return the encodings and baselines with results."""
    return {record.contender for record in read_records(out / "results.jsonl")}


def keys_of_records(run_directory: Path) -> set[str]:
    """Return the keys of records in a run's scores.json."""
    records = json.loads((run_directory / "scores.json").read_text())["records"]
    return {key for record in records for key in record}


def validation_loss(run_directory: Path) -> float:
    loss: float = json.loads((run_directory / "scores.json").read_text())["validation_loss"]
    return loss


def first_step(run_directory: Path) -> dict[str, Any]:
    """Return the metrics of a run's first step."""
    entry: dict[str, Any] = json.loads((run_directory / "metrics.jsonl").read_text().splitlines()[0])
    return entry


@pytest.mark.usefixtures("capitals", "quick_children")
def test_resumes_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished runs are kept, the stopped run is trained again, and the best learning rate gets the seed."""
    start = Children.run
    trained = []

    def stop_at_the_fourth(self: Children, words: list[str], environment: dict[str, str], log: Path) -> int:
        if "pretrain" in words:
            trained.append(str(log.parent.relative_to(tmp_path)))
            if len(trained) == 4:
                raise KeyboardInterrupt
        return start(self, words, environment, log)

    monkeypatch.setattr(Children, "run", stop_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 1)
    assert rows_with_results(tmp_path) == set(BASELINES)
    assert "capitals, tape: seeds 1 (not run yet, or failed)" in (tmp_path / "suite.md").read_text()

    printed = run(tmp_path, 1)

    best_rates = {}
    for row in ("rope", "tape"):
        losses = {rate: validation_loss(tmp_path / f"capitals/{row}/rate-{rate}/seed-0") for rate in RATES}
        best_rates[row] = min(losses, key=losses.__getitem__)
    assert trained == [
        "capitals/rope/rate-0.001/seed-0",
        "capitals/rope/rate-0.01/seed-0",
        "capitals/tape/rate-0.001/seed-0",
        "capitals/tape/rate-0.01/seed-0",  # stopped
        "capitals/tape/rate-0.01/seed-0",
        f"capitals/rope/rate-{best_rates['rope']}/seed-1",
        f"capitals/tape/rate-{best_rates['tape']}/seed-1",
    ]
    assert f"capitals, tape, rate {best_rates['tape']}, seed 1: validation loss" in printed
    assert "`tape`" in printed
    assert (tmp_path / "suite.md").read_text().startswith("    typed\n")
    assert rows_with_results(tmp_path) == {"rope", "tape", *BASELINES}
    scored = []
    for record in read_records(tmp_path / "results.jsonl"):
        if record.kind == "encoding":
            scored.append((record.contender, record.split, record.seed, record.learning_rate))
    assert scored == [
        ("rope", "long", 1, best_rates["rope"]),
        ("tape", "long", 1, best_rates["tape"]),
        ("rope", "test", 1, best_rates["rope"]),
        ("tape", "test", 1, best_rates["tape"]),
    ]

    # A record's contender is "row" in files.
    assert "row" in keys_of_records(tmp_path / f"capitals/tape/rate-{best_rates['tape']}/seed-1")
    # Encodings see the same samples in the same order, and start from the same weights where both have them.
    rope_step = first_step(tmp_path / "capitals/rope/rate-0.01/seed-0")
    tape_step = first_step(tmp_path / "capitals/tape/rate-0.01/seed-0")
    assert rope_step["digest"] == tape_step["digest"]
    assert rope_step["loss"] == pytest.approx(tape_step["loss"], rel=1e-5)

    # Runs with another model or other samples are not mixed in.
    monkeypatch.setitem(SIZES, "tiny", replace(QUICK, model=replace(QUICK.model, num_layers=3)))
    with pytest.raises(ValueError, match="was trained with model.num_layers 2, the configuration says 3"):
        run(tmp_path, 1)
    monkeypatch.setitem(SIZES, "tiny", replace(QUICK, tokens=5 * 4 * 6))
    with pytest.raises(ValueError, match="was written for samples"):
        run(tmp_path, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("capitals", "quick_children")
def test_the_search_goes_beyond_the_grid(tmp_path: Path) -> None:
    """A best rate at an end of the grid adds others, and each rate is tried with two seeds that are not tested."""
    plan = parse_plan("tiny", "capitals", "rope", 1, (1e-5, 3e-5))
    suite(plan, Study(tmp_path, RunPool(1, None), "typed", print))

    # Within three steps, a model learns more at every larger rate.
    tried = sorted(float(path.name.removeprefix("rate-")) for path in (tmp_path / "capitals" / "rope").iterdir())
    assert tried == [1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3]
    for rate in tried:
        seeds = {path.parent.name for path in (tmp_path / f"capitals/rope/rate-{rate:g}").glob("*/scores.json")}
        assert seeds >= {"seed-0", "seed-10000"}
    tested = {record.seed for record in read_records(tmp_path / "results.jsonl") if record.kind == "encoding"}
    assert tested == {1}
    assert "* capitals, rope: learning rates beyond 0.003, the best of those tried" in (tmp_path / "suite.md").read_text()


@pytest.mark.usefixtures("capitals", "quick_children")
def test_cells_of_an_array_job_train_apart(tmp_path: Path) -> None:
    """Each cell trains one task and encoding, without waiting for others. The tables have the results of all finished runs."""
    printed = run(tmp_path, 1, [1e-3], only=1)
    assert "1 run, 1 of them to do" in printed
    assert "capitals, rope: seeds 1 (not run yet, or failed)" in printed
    assert encodings_with_results(tmp_path) == {"tape"}

    with locked_study(tmp_path / "capitals" / "tape"), (tmp_path / "suite.md").open() as reader:
        assert "not run yet" not in run(tmp_path, 1, [1e-3], only=0)
        # A reader of the last tables sees all of them.
        assert "capitals, rope: seeds 1 (not run yet, or failed)" in reader.read()
        with pytest.raises(ValueError, match="is in use by another study"):
            run(tmp_path, 1, [1e-3], only=1)
    assert encodings_with_results(tmp_path) == {"rope", "tape"}


@pytest.mark.usefixtures("capitals", "quick_children")
def test_cell_out_of_range_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cell is 2: the tasks and encodings have the numbers 0 to 1"):
        run(tmp_path, 1, [1e-3], only=2)


class FailingRate:
    """Replacement of `Children.run` that fails the runs with a learning rate of 0.01.

    Attributes:
        status: Exit status of the failing runs.
        tried: Encodings of the failing runs, in order.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
        self.status = status
        self.tried: list[str] = []
        start = Children.run

        def run_or_fail(children: Children, words: list[str], environment: dict[str, str], log: Path) -> int:
            if "optimizer.learning_rate=0.01" not in words:
                return start(children, words, environment, log)
            self.tried.append(log.parents[2].name)
            log.write_text("error: the weights have diverged\n")
            return self.status

        monkeypatch.setattr(Children, "run", run_or_fail)


@pytest.mark.slow
@pytest.mark.usefixtures("capitals", "quick_children")
def test_diverged_learning_rate_is_not_chosen_or_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = FailingRate(monkeypatch, status=3)

    with pytest.raises(RunsFailed, match="2 of 6 runs failed"):
        run(tmp_path, 1)
    assert rows_with_results(tmp_path) == {"rope", "tape", *BASELINES}
    assert "capitals, rope: learning rate 0.01 (the weights diverged)" in (tmp_path / "suite.md").read_text()

    run(tmp_path, 1)
    assert failing.tried == ["rope", "tape"]


@pytest.mark.slow
@pytest.mark.usefixtures("capitals", "quick_children")
def test_learning_rate_that_failed_otherwise_leaves_the_choice_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FailingRate(monkeypatch, status=1)

    with pytest.raises(RunsFailed, match="2 of 4 runs failed"):
        run(tmp_path, 1)
    assert rows_with_results(tmp_path) == set(BASELINES)


@pytest.mark.usefixtures("capitals", "quick_children")
def test_truncated_last_checkpoint_has_to_be_removed(tmp_path: Path) -> None:
    """The command says what to remove. Then it trains the run again, with the same scores."""
    run(tmp_path, 1, rates=[1e-3])
    folder = RunFolder(tmp_path / "capitals/rope/rate-0.001/seed-1")
    scores_file = folder.directory / "scores.json"
    expected_scores = json.loads(scores_file.read_text())["records"]
    scores_file.unlink()
    (weights,) = folder.list_checkpoints()[0].glob("weight-*")
    os.truncate(weights, 100)

    with pytest.raises(RunsFailed, match="none of the 1 checkpoints is valid .*; repair or remove them"):
        run(tmp_path, 1, rates=[1e-3])
    shutil.rmtree(folder.directory)
    run(tmp_path, 1, rates=[1e-3])

    assert json.loads(scores_file.read_text())["records"] == expected_scores


@pytest.mark.usefixtures("capitals", "measured_here")
def test_failed_run_is_reported(tmp_path: Path) -> None:
    plan = parse_plan("tiny", "capitals", "rope", 1, [1e-3])
    study = Study(tmp_path, RunPool(1, "false"), "typed", print)

    with pytest.raises(RunsFailed, match="capitals, rope, rate 0.001, seed 1: training exited with status 1"):
        suite(plan, study)

    assert not RunFolder(tmp_path / "capitals/rope/rate-0.001/seed-1").list_checkpoints()

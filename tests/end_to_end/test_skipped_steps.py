"""Steps skipped because loss or gradient are not finite: how the run reports and saves, and when it ends."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from megatape.checkpoint.format.manifest import MANIFEST, STATE
from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.errors import TrainingDiverged
from megatape.run_folder import RunFolder
from megatape.training.start import Start
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_folders import assert_identical, comparable_metrics, read_entries, saved_steps, verified_tensors
from tests.helpers.runs.small_run import small_config
from tests.helpers.runs.trainers import trainer_without_lease

STEPS = 5


class Run(NamedTuple):
    """A run with losses that are not finite.

    Attributes:
        bad_steps: Steps whose training loss is not finite.
        max_skipped_steps: Value of training.max_skipped_steps, None for the default.
        origin: Step of the checkpoint of "straight" to resume from, None for a new run.
        bad_evaluation: Whether the validation loss is not finite, too.
        is_transient: Whether losses are finite when they are computed again.
    """

    bad_steps: list[int]
    max_skipped_steps: int | None = None
    origin: int | None = None
    bad_evaluation: bool = False
    is_transient: bool = False


RUNS = {
    "plain": Run([]),
    "transient": Run([2, 3, 5], max_skipped_steps=0, is_transient=True),
    "straight": Run([2]),
    "resumed": Run([], origin=3),
    "too many": Run([2, 3], max_skipped_steps=1),
    "again and again": Run([1, 3, 5], max_skipped_steps=1),
    "all": Run([1, 2, 3, 4, 5], bad_evaluation=True),
}


class Results(NamedTuple):
    """Run directory and error of each run, and the output of all."""

    folders: dict[str, RunFolder]
    errors: dict[str, str | None]
    output: str


@pytest.fixture(scope="module")
def results(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    root = tmp_path_factory.mktemp("skipped")
    config = small_config(data_directory, root / "run")
    config["training"] |= {"steps": STEPS}
    config["checkpoint"] = {"interval": 2, "keep": 5}
    config["evaluation"]["interval"] = 100
    (errors,) = run_workers("tests.end_to_end.test_skipped_steps:train_runs", 1, config, root / "workers")
    folders = {name: RunFolder(root / "run" / name) for name in RUNS}
    return Results(folders, errors, (root / "workers" / "rank0.log").read_text())


def train_runs(raw: dict[str, Any], topology: Topology) -> dict[str, str | None]:
    """Train all of RUNS. Returns the error that each ended with, or None."""
    return {name: _train(raw, topology, name) for name in RUNS}


def _train(raw: dict[str, Any], topology: Topology, name: str) -> str | None:
    plan = RUNS[name]
    root = Path(raw["run"]["directory"])
    raw = raw | {"training": dict(raw["training"]), "run": {"directory": str(root / name)}}
    if plan.max_skipped_steps is not None:
        raw["training"]["max_skipped_steps"] = plan.max_skipped_steps
    resume = None
    if plan.origin is not None:
        resume = str(RunFolder(root / "straight").checkpoint(plan.origin))
    run = trainer_without_lease(parse_config(raw, name), topology, Start(resume))

    spoiled: set[int] = set()

    def spoil(module: Any, inputs: Any, output: Any) -> Any:
        is_bad = plan.bad_evaluation
        if module.training:
            is_bad = run.progress.step + 1 in plan.bad_steps
        if is_bad and plan.is_transient and run.progress.step in spoiled:
            return output
        if is_bad:
            spoiled.add(run.progress.step)
            return output * torch.nan
        return output

    run.engine.deepspeed_engine.module.register_forward_hook(spoil)
    try:
        run.train()
    except TrainingDiverged as error:
        return str(error)
    return None


def test_a_skipped_step_is_reported(results: Results) -> None:
    straight = results.folders["straight"]

    assert results.errors["straight"] is None
    metrics = read_entries(straight.metrics)
    assert [entry["loss"] is None for entry in metrics] == [False, True, False, False, False]
    assert metrics[1]["skipped"] == "the loss is nan"
    assert "skipped" not in metrics[2]
    (event,) = [event for event in read_entries(straight.events) if event["event"] == "skipped"]
    assert event["step"] == 2
    assert event["detail"].endswith("samples 8 to 15): the loss is nan")
    assert "the step is skipped" in results.output


def test_a_transient_fault_changes_nothing(results: Results) -> None:
    """The step is computed again. The run ends with the bytes and metrics of one without faults."""
    plain = results.folders["plain"]
    transient = results.folders["transient"]

    assert results.errors["transient"] is None
    assert_identical(verified_tensors(transient.checkpoint(STEPS)), verified_tensors(plain.checkpoint(STEPS)))
    assert comparable_metrics(transient) == comparable_metrics(plain)
    events = [event for event in read_entries(transient.events) if event["event"] == "spike"]
    assert len(events) == 3
    assert "the loss is nan; computed again" in events[0]["detail"]


def test_a_save_due_after_a_skipped_step_comes_after_the_next(results: Results) -> None:
    straight = results.folders["straight"]

    assert saved_steps(straight) == [5, 4, 3]
    checkpoint = straight.checkpoint(3)
    assert json.loads((checkpoint / MANIFEST).read_text())["features"] == ["skipped_steps"]
    state = json.loads((checkpoint / STATE).read_text())
    assert (state["step"], state["updates"], state["samples"]) == (3, 2, 24)


def test_a_run_resumes_exactly_after_a_skipped_step(results: Results) -> None:
    assert results.errors["resumed"] is None
    expected = verified_tensors(results.folders["straight"].checkpoint(STEPS))
    assert_identical(verified_tensors(results.folders["resumed"].checkpoint(STEPS)), expected)


def test_too_many_skipped_steps_in_a_row_end_the_run(results: Results) -> None:
    error = results.errors["too many"] or ""

    assert "samples 16 to 23): the loss is nan. That makes 2 skipped steps in a row" in error
    assert "training.max_skipped_steps allows 1" in error
    assert "There is no checkpoint from before: lower optimizer.learning_rate" in error
    assert saved_steps(results.folders["too many"]) == []


def test_skipped_steps_that_are_not_in_a_row_do_not_end_the_run(results: Results) -> None:
    assert results.errors["again and again"] is None


def test_a_validation_loss_that_is_not_finite_ends_the_run(results: Results) -> None:
    error = results.errors["all"] or ""

    assert "the validation loss after step 5 is nan" in error
    assert "There is no checkpoint from before: lower optimizer.learning_rate" in error
    assert saved_steps(results.folders["all"]) == []

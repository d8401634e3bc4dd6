"""The soak itself: running it for two minutes, and the differences it notices."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from megatape.run_folder import RunFolder
from megatape.utils.files.atomic import write_atomically
from tests.helpers.runs.case_runs import assert_no_errors, run_cases
from tests.helpers.runs.run_folders import flip_byte, read_entries
from tests.helpers.runs.small_run import small_config
from tests.soak.__main__ import main
from tests.soak.disturbed_run import DisturbedRun
from tests.soak.launch import Failure
from tests.soak.progress import Progress
from tests.soak.schedule import CORRUPTIONS, FAULTS, KINDS, LAYOUTS, MODELS, MOMENTS, Round, rounds
from tests.soak.soak import FEATURES, soak
from tests.soak.verdict import compare


@pytest.mark.slow
# A busy machine needs this long.
@pytest.mark.timeout(1800)
def test_two_minutes(tmp_path: Path) -> None:
    """Killed, stopped, signaled, corrupted, on a full disk and on other ranks, runs end as undisturbed runs do.

    Disturbances take one minute. Undisturbed runs and finishing the last round take the other.
    """
    soak(60.0, 7, tmp_path / "soak")

    events = [entry["event"] for entry in read_entries(tmp_path / "soak" / "journal.jsonl")]
    assert "fault" in events
    assert "corruption" in events
    assert events[-1] == "equal"


@pytest.fixture
def plans() -> list[Round]:
    """Return a soak's first rounds, one for each model."""
    return list(islice(rounds(5), len(MODELS)))


def test_the_seed_determines_the_schedule(plans: list[Round]) -> None:
    assert list(islice(rounds(5), len(MODELS))) == plans
    assert list(islice(rounds(6), len(MODELS))) != plans


def test_rounds_have_all_features_and_kinds_of_layouts(plans: list[Round]) -> None:
    assert {plan.features for plan in plans} == set(MODELS)
    assert {feature for features in MODELS for feature in features} == set(FEATURES)
    for axis in ("data", "context", "sequence", "tensor"):
        assert max(getattr(layout, axis) for layout in LAYOUTS) > 1, axis
    modes = {(plan.resizes, plan.background) for plan in plans}
    assert modes == {(False, False), (False, True), (True, False), (True, True)}


def test_a_round_has_each_kind_of_fault(plans: list[Round]) -> None:
    """Two minutes are enough for most of its ten faults."""
    for plan in plans:
        assert len(plan.faults) == FAULTS
        assert sorted(fault.kind for fault in plan.faults) == sorted(KINDS)
        assert {fault.moment for fault in plan.faults} == set(MOMENTS)
        assert {fault.corruption for fault in plan.faults} == set(CORRUPTIONS)
        layouts = {fault.layout for fault in plan.faults}
        if plan.resizes:
            assert len(layouts) > len(LAYOUTS) / 2
        else:
            assert layouts == {plan.layout}


def test_steps_of_earlier_starts_do_not_count(tmp_path: Path) -> None:
    """A start touches the record of steps before making one: a signal coming in between hits no step."""
    folder = RunFolder(tmp_path)
    lines = [json.dumps({"step": step}) + "\n" for step in range(1, 25)]
    folder.metrics.write_text("".join(lines))
    progress = Progress(folder, folder.checkpoint(16))

    os.utime(folder.metrics)
    assert progress.steps == 0

    write_atomically(folder.metrics, "".join(lines[:17]).encode())
    assert progress.steps == 1


def test_an_unexpected_error_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the soak itself is in the journal. The run directory stays, and the small disk is unmounted."""
    folder = tmp_path / "soak"

    def finish(run: DisturbedRun, deadline: float) -> None:
        run.folder.directory.mkdir()
        run.folder.metrics.write_text("kept")
        raise KeyError("validation_loss")

    monkeypatch.setattr(DisturbedRun, "_finish", finish)
    monkeypatch.setattr("tests.soak.soak.prepare_words", lambda _: tmp_path)
    monkeypatch.setattr("tests.soak.soak._undisturbed", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["soak", "--minutes", "1", "--seed", "1", "--output", str(folder)])
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    assert main() == 1
    for number, handler in handlers.items():
        signal.signal(number, handler)

    last_entry = read_entries(folder / "journal.jsonl")[-1]
    assert last_entry["event"] == "failure"
    assert last_entry["kind"] == "KeyError"
    assert "validation_loss" in last_entry["text"]
    assert (folder / "run-1" / "metrics.jsonl").read_text() == "kept"
    assert not (folder / "disk").is_mount()


def write_metrics(run: RunFolder, entries: list[dict[str, Any]]) -> None:
    run.metrics.write_text("\n".join(json.dumps(entry) for entry in entries))


def lose_a_step(run: RunFolder) -> None:
    entries = read_entries(run.metrics)
    del entries[1]
    write_metrics(run, entries)


def lose_an_evaluation(run: RunFolder) -> None:
    entries = read_entries(run.metrics)
    del entries[3]["validation_loss"]
    write_metrics(run, entries)


def scale_step_3(name: str, factor: float) -> Callable[[RunFolder], None]:
    """Return a function multiplying one of step 3's metrics."""

    def scale(run: RunFolder) -> None:
        entries = read_entries(run.metrics)
        entries[2][name] *= factor
        write_metrics(run, entries)

    return scale


def lose_last_checkpoint(run: RunFolder) -> None:
    shutil.rmtree(run.checkpoint(4))


def corrupt_a_weight(run: RunFolder) -> None:
    flip_byte(run.checkpoint(4) / "weight-00000.safetensors")


def lose_a_view(run: RunFolder) -> None:
    run.position_view(4).unlink()


def corrupt_a_view(run: RunFolder) -> None:
    flip_byte(run.position_view(4))


def leave_a_partial_folder(run: RunFolder) -> None:
    (run.checkpoints / "step-00000005.0.tmp").mkdir()


def leave_the_lease(run: RunFolder) -> None:
    run.lease.touch()


class Change(NamedTuple):
    """A difference between a run and the undisturbed one.

    Attributes:
        name: The change's name.
        apply: Changes the run directory.
        if_resized: Part of the failure if the number of ranks was changing, None if the run passes.
        if_fixed: The same if the run had the same ranks at all times.
    """

    name: str
    apply: Callable[[RunFolder], None]
    if_resized: str | None
    if_fixed: str | None


CHANGES = [
    Change("nothing", lambda run: None, None, None),
    Change("lost step", lose_a_step, "lines were lost", "lines were lost"),
    Change("other samples", scale_step_3("digest", 2), "the digest", "the digest"),
    Change("other loss", scale_step_3("loss", 1.1), "loss: difference", "metrics of step 3"),
    Change("lost evaluation", lose_an_evaluation, "steps with validation_loss", "metrics of step 4"),
    Change("other rounding", scale_step_3("loss", 1 + 1e-7), None, "metrics of step 3"),
    Change("other rate", scale_step_3("lr", 1 + 1e-7), "metrics of step 3", "metrics of step 3"),
    Change("corrupted weight", corrupt_a_weight, "its sha256 is not the one", "its sha256 is not the one"),
    Change("older weights", lose_last_checkpoint, "the last checkpoint is", "the last checkpoint is"),
    Change("lost view", lose_a_view, None, "position views of steps"),
    Change("other view", corrupt_a_view, None, "has other bytes"),
    Change("partial folder", leave_a_partial_folder, "has left", "has left"),
    Change("lease", leave_the_lease, "has left", "has left"),
]


@pytest.fixture(scope="module")
def root(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two equal runs, "run" and "undisturbed"."""
    folder = tmp_path_factory.mktemp("soak")
    config = small_config(data_directory, folder / "runs")
    config["checkpoint"] = {"interval": 2}
    config["evaluation"]["interval"] = 2
    assert_no_errors(run_cases(config, [{"name": "undisturbed"}, {"name": "run"}], 1, folder / "workers"))
    return folder / "runs"


@pytest.mark.parametrize("is_fixed", [False, True], ids=["resized", "fixed"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_a_difference_is_noticed(root: Path, tmp_path: Path, change: Change, is_fixed: bool) -> None:
    run = RunFolder(Path(shutil.copytree(root / "run", tmp_path / "run")))
    change.apply(run)
    expected = change.if_resized
    if is_fixed:
        expected = change.if_fixed

    if expected is None:
        compare(run, RunFolder(root / "undisturbed"), is_fixed, all_views=True)
        return
    with pytest.raises(Failure, match=expected):
        compare(run, RunFolder(root / "undisturbed"), is_fixed, all_views=True)

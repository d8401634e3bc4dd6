"""The soak itself: two minutes of it, and what its verdict notices."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from megatape.run_folder import RunFolder
from megatape.utils.atomic import write_atomically
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_folders import flip_byte
from tests.helpers.runs.training_cases import TRAIN_CASES
from tests.soak.__main__ import main
from tests.soak.disturbed_run import DisturbedRun
from tests.soak.launch import Failure
from tests.soak.progress import Progress
from tests.soak.schedule import CORRUPTIONS, FAULTS, KINDS, LAYOUTS, MODELS, MOMENTS, rounds
from tests.soak.soak import FEATURES, soak
from tests.soak.verdict import compare


@pytest.mark.slow
@pytest.mark.timeout(1800)  # on a busy machine
def test_two_minutes(tmp_path: Path) -> None:
    """Killed, stopped, signaled, corrupted, on a full disk and on other ranks, runs end as those that nobody disturbed.

    One minute of disturbances; undisturbed runs and the end of the last round take the other."""
    soak(60.0, 7, tmp_path / "soak")
    entries = [json.loads(line) for line in (tmp_path / "soak" / "journal.jsonl").read_text().splitlines()]
    events = [entry["event"] for entry in entries]
    assert "fault" in events and "corruption" in events and events[-1] == "equal"


def test_the_seed_gives_the_schedule() -> None:
    """Ten faults show each kind: two minutes are enough for most of them."""
    first, again = (list(islice(rounds(5), len(MODELS))) for _ in range(2))
    assert first == again != list(islice(rounds(6), len(MODELS)))
    assert {plan.features for plan in first} == set(MODELS)
    assert {feature for features in MODELS for feature in features} == set(FEATURES)
    for axis in ("data", "context", "sequence", "tensor"):
        assert any(getattr(layout, axis) > 1 for layout in LAYOUTS)
    assert {(plan.resizes, plan.background) for plan in first} == {(a, b) for a in (False, True) for b in (False, True)}
    for plan in first:
        assert sorted(fault.kind for fault in plan.faults) == sorted(KINDS) and len(plan.faults) == FAULTS
        assert {fault.moment for fault in plan.faults} == set(MOMENTS)
        assert {fault.corruption for fault in plan.faults} == set(CORRUPTIONS)
        ranks = {fault.layout for fault in plan.faults}
        assert len(ranks) > len(LAYOUTS) / 2 if plan.resizes else ranks == {plan.layout}


def test_steps_of_earlier_starts_do_not_count(tmp_path: Path) -> None:
    """A start touches the record of the steps before it makes one: a signal that comes between hits no step."""
    folder = RunFolder(tmp_path)
    lines = [json.dumps({"step": step}) + "\n" for step in range(1, 25)]
    folder.metrics.write_text("".join(lines))
    progress = Progress(folder, folder.checkpoint(16))
    os.utime(folder.metrics)
    assert progress.steps == 0
    write_atomically(folder.metrics, "".join(lines[:17]).encode())
    assert progress.steps == 1


def test_an_unexpected_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal has an error of the soak itself, which neither loses the run's folder nor leaves the small disk mounted."""
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
    last = json.loads((folder / "journal.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["kind"]) == ("failure", "KeyError") and "validation_loss" in last["text"]
    assert (folder / "run-1" / "metrics.jsonl").read_text() == "kept" and not (folder / "disk").is_mount()


def lose_a_step(run: RunFolder) -> None:
    lines = run.metrics.read_text().splitlines()
    run.metrics.write_text("\n".join(lines[:1] + lines[2:]))


def lose_an_evaluation(run: RunFolder) -> None:
    entries = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    del entries[3]["validation_loss"]
    run.metrics.write_text("\n".join(map(json.dumps, entries)))


def change_step(name: str, factor: float) -> Callable[[RunFolder], None]:
    def change(run: RunFolder) -> None:
        entries = [json.loads(line) for line in run.metrics.read_text().splitlines()]
        entries[2][name] *= factor
        run.metrics.write_text("\n".join(map(json.dumps, entries)))

    return change


# What happens to a run -> whether that is noticed where it resized, and where it had the same ranks at all times.
CASES: dict[str, tuple[Callable[[RunFolder], Any], str, str]] = {
    "nothing": (lambda run: None, "", ""),
    "lost step": (lose_a_step, "lines were lost", "lines were lost"),
    "other samples": (change_step("digest", 2), "the digest", "the digest"),
    "other loss": (change_step("loss", 1.1), "loss: difference", "metrics of step 3"),
    "lost evaluation": (lose_an_evaluation, "steps with validation_loss", "metrics of step 4"),
    "other rounding": (change_step("loss", 1 + 1e-7), "", "metrics of step 3"),
    "other rate": (change_step("lr", 1 + 1e-7), "metrics of step 3", "metrics of step 3"),
    "corrupted weight": (
        lambda run: flip_byte(run.checkpoint(4) / "weight-00000.safetensors"),
        "its sha256 is not the one",
        "its sha256 is not the one",
    ),
    "older weights": (lambda run: shutil.rmtree(run.checkpoint(4)), "the last checkpoint is", "the last checkpoint is"),
    "lost view": (lambda run: run.position_view(4).unlink(), "", "position views of steps"),
    "other view": (lambda run: flip_byte(run.position_view(4)), "", "has other bytes"),
    "partial folder": (lambda run: (run.checkpoints / "step-00000005.0.tmp").mkdir(), "has left", "has left"),
    "lease": (lambda run: run.lease.touch(), "has left", "has left"),
}


def test_what_the_verdict_notices(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["checkpoint"] = {"interval": 2}
    raw_config["evaluation"]["interval"] = 2
    cases = [{"name": "undisturbed"}, {"name": "run"}]
    run_workers(TRAIN_CASES, 1, {"config": raw_config, "cases": cases}, tmp_path / "workers")
    root = Path(raw_config["run"]["directory"])
    for name, (change, *noticed) in CASES.items():
        for fixed, text in zip((False, True), noticed, strict=True):
            run = RunFolder(Path(shutil.copytree(root / "run", root / f"{name}, fixed {fixed}")))
            change(run)
            if text:
                with pytest.raises(Failure, match=text):
                    compare(run, RunFolder(root / "undisturbed"), fixed, all_views=True)
            else:
                compare(run, RunFolder(root / "undisturbed"), fixed, all_views=True)

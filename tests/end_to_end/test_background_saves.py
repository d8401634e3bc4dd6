"""Checkpoints written in the background while training continues.

They have the same bytes as in the foreground, and none is lost when the run ends.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from megatape.checkpoint.format.manifest import MANIFEST, STATE
from megatape.checkpoint.save import run_writer
from megatape.checkpoint.save.background import SaveInFlight
from megatape.checkpoint.save.contents import CheckpointContents
from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.errors import TrainingDiverged
from megatape.reliability.lease import hold
from megatape.run_environment import RunEnvironment
from megatape.run_folder import RunFolder
from megatape.training.start import Start
from megatape.training.startup.build_trainer import build_trainer
from megatape.training.trainer import Trainer
from tests.helpers.processes.workers import run_workers, start_workers
from tests.helpers.runs.run_data import open_run_data
from tests.helpers.runs.run_folders import num_recorded_steps, read_entries, saved_steps

MODULE = "tests.end_to_end.test_background_saves"
STAGES: dict[str, dict[str, Any]] = {
    "stage 0": {"zero": {"stage": 0}},
    "stage 2, float32": {"zero": {"stage": 2}, "training": {"precision": "float32"}},
    "stage 3, T": {"zero": {"stage": 3}, "parallel": {"tp": 2}},
}
RUNNING: list[Trainer] = []  # The trainer in this process


def do_nothing(run: Trainer) -> None:
    pass


@dataclass(frozen=True)
class Disturbance:
    """Disturbing a run's saves.

    Attributes:
        before_start: Called before each save starts in the background.
        after_start: Called after each save has started.
        first_save_fails: Whether the first save fails.
        is_late: Whether a save is not written before another step is done.
    """

    before_start: Callable[[Trainer], None] = do_nothing
    after_start: Callable[[Trainer], None] = do_nothing
    first_save_fails: bool = False
    is_late: bool = True


LATE = Disturbance()


@pytest.mark.slow
def test_bytes_are_those_of_the_foreground(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Weights, moments and generators have changed before they are written, but the checkpoint has their earlier values."""
    raw_config["checkpoint"] = {"interval": 1, "keep": 10}

    run_workers(f"{MODULE}:train_both_ways", 2, raw_config, tmp_path / "workers")

    for name in STAGES:
        foreground = RunFolder(tmp_path / "run" / name / "False")
        background = RunFolder(tmp_path / "run" / name / "True")
        for step in range(1, 5):
            expected_hashes = hashes_of(foreground.checkpoint(step))
            assert hashes_of(background.checkpoint(step)) == expected_hashes, (name, step)
            assert len(expected_hashes) > 4, (name, step)
            assert state_of(background.checkpoint(step)) == state_of(foreground.checkpoint(step)), (name, step)
        events = save_events(background)
        assert [saved_name(event) for event in events] == [f"step-{step:08d}" for step in range(1, 5)]
        assert [event["step"] for event in events] == [2, 3, 4, 4], "three of them were complete a step later"


def hashes_of(checkpoint: Path) -> dict[str, str]:
    """Return hashes of all files but the state, by file."""
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    return {file: entry["sha256"] for file, entry in manifest["files"].items() if file != STATE}


def state_of(checkpoint: Path) -> dict[str, Any]:
    """Return the state without the settings that differ between the runs."""
    state: dict[str, Any] = json.loads((checkpoint / STATE).read_text())
    del state["config"]["run"]
    del state["config"]["checkpoint"]
    return state


def save_events(folder: RunFolder) -> list[dict[str, Any]]:
    return [event for event in read_entries(folder.events) if event["event"] == "checkpoint"]


def saved_name(event: dict[str, Any]) -> str:
    """Return the checkpoint named in an event."""
    name: str = event["detail"].split(",")[0]
    return name


def train_both_ways(raw: dict[str, Any], topology: Topology) -> None:
    for name, changes in STAGES.items():
        changed = {section: raw.get(section, {}) | values for section, values in changes.items()}
        for is_background in (False, True):
            _train(raw | changed, topology, f"{name}/{is_background}", LATE, is_background)


def test_ends_while_a_save_is_in_flight(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """The save being written becomes complete, and the last step is saved.

    The run ends by a signal, a signal after beginning a failing save, an error in the run, or a signal in the next step.
    """
    raw_config["checkpoint"] = {"interval": 2, "keep": 10}
    raw_config["training"] |= {"steps": 9}

    (ends,) = run_workers(f"{MODULE}:end_in_every_way", 1, raw_config, tmp_path / "workers")

    assert "training.max_skipped_steps allows 0" in ends.pop("error")
    assert ends == {"signal": "True", "failure": "True", "later signal": "True"}
    for name, expected_steps in {"signal": [2], "failure": [2], "error": [2], "later signal": [3, 2]}.items():
        folder = RunFolder(tmp_path / "run" / name)
        assert saved_steps(folder) == expected_steps, name
        expected_names = [f"step-{step:08d}" for step in sorted(expected_steps)]
        assert [saved_name(event) for event in save_events(folder)] == expected_names, name


def end_in_every_way(raw: dict[str, Any], topology: Topology) -> dict[str, str]:
    """Return how each run ended."""

    def interrupt(run: Trainer) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def interrupt_next_step(run: Trainer) -> None:
        run.engine.deepspeed_engine.module.register_forward_pre_hook(lambda *_: interrupt(run))

    def spoil_output(module: Any, inputs: Any, output: Any) -> Any:
        return output * torch.nan

    def spoil_next_step(run: Trainer) -> None:
        run.engine.deepspeed_engine.module.register_forward_hook(spoil_output)

    raw = raw | {"training": raw["training"] | {"max_skipped_steps": 0}}
    disturbances = {
        "signal": Disturbance(after_start=interrupt, is_late=False),
        "failure": Disturbance(after_start=interrupt, first_save_fails=True, is_late=False),
        "error": Disturbance(after_start=spoil_next_step),
        "later signal": Disturbance(after_start=interrupt_next_step),
    }
    return {name: _train(raw, topology, name, disturbance) for name, disturbance in disturbances.items()}


def test_killed_while_a_save_is_in_flight(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """The next start uses the checkpoint before, and removes the partial one."""
    raw_config["checkpoint"] = {"interval": 2}
    folder = RunFolder(tmp_path / "run" / "killed")

    def has_partial_save() -> bool:
        return any(folder.checkpoints.glob("step-00000004.*.tmp/weight-*"))

    def is_training_during_a_save() -> bool:
        return has_partial_save() and num_recorded_steps(folder) > 4

    with start_workers(f"{MODULE}:train_until_killed", 1, raw_config, tmp_path / "first") as workers:
        workers.wait(lambda: is_training_during_a_save() or not workers.running(), "a step during the save", 90)
        assert workers.running() == [0], workers.logs()
        workers.signal(signal.SIGKILL)
    assert has_partial_save()

    run_workers(f"{MODULE}:resume", 1, raw_config, tmp_path / "second")

    assert f"resumed from {folder.checkpoint(2)}" in (tmp_path / "second" / "rank0.log").read_text()
    assert list(folder.checkpoints.glob("*.tmp")) == []


def train_until_killed(raw: dict[str, Any], topology: Topology) -> None:
    """Train without end, only writing the second checkpoint's first file."""
    raw = raw | {"training": raw["training"] | {"steps": 1000}}

    def hang(*_: Any) -> None:
        time.sleep(600)

    def hang_second_save(run: Trainer) -> None:
        if run.progress.step == 4:
            patch("megatape.checkpoint.save.writer.gather_values", hang).start()

    _train(raw, topology, "killed", Disturbance(before_start=hang_second_save, is_late=False))


def resume(raw: dict[str, Any], topology: Topology) -> None:
    _train(raw, topology, "killed", Disturbance(is_late=False), resume="auto")


def _train(
    raw: dict[str, Any],
    topology: Topology,
    name: str,
    disturbance: Disturbance,
    is_background: bool = True,
    resume: str | None = None,
) -> str:
    """Train with saves in the background or foreground. Returns whether the run was stopped, or the error that ended it."""
    raw = raw | {
        "run": {"directory": f"{raw['run']['directory']}/{name}"},
        "checkpoint": raw["checkpoint"] | {"background": is_background},
    }
    config = parse_config(raw, name)
    print(f"case {name}", flush=True)
    with hold(RunFolder(Path(config.run.directory)).lease, topology) as lease, _disturbed_writes(disturbance):
        run = build_trainer(config, open_run_data(config), topology, lease, Start(resume))
        run.engine.deepspeed_engine.module.register_forward_pre_hook(lambda *_: torch.rand(1) and None)  # moves the generator
        RUNNING[:] = [run]
        torch.manual_seed(0)
        try:
            with _disturbed_starts(run, disturbance):
                return str(run.train())
        except TrainingDiverged as error:
            return str(error)


def _disturbed_starts(run: Trainer, disturbance: Disturbance) -> AbstractContextManager[Any]:
    """Call a disturbance's functions around the start of each background save."""
    background = run.checkpoints.saver.background
    if background is None:
        return nullcontext()
    original_start = background.start

    def start(save: SaveInFlight, write: Callable[[], Path]) -> None:
        disturbance.before_start(run)
        original_start(save, write)
        disturbance.after_start(run)

    return patch.object(background, "start", start)


@contextmanager
def _disturbed_writes(disturbance: Disturbance) -> Iterator[None]:
    """Apply a disturbance to writing: delay saves, or let the first one fail."""
    original_write = run_writer.write_checkpoint
    failures: list[Exception] = []
    if disturbance.first_save_fails:
        failures = [OSError("disk")]

    def write(environment: RunEnvironment, contents: CheckpointContents) -> Path:
        if disturbance.is_late:
            _wait_for_next_step(contents.state.step)
        if failures:
            raise failures.pop()
        return original_write(environment, contents)

    with patch.object(run_writer, "write_checkpoint", write):
        yield


def _wait_for_next_step(step: int) -> None:
    """Wait in a background save until the next step is done, but at most two seconds: there may be no next step."""
    run = RUNNING[0]
    background = run.checkpoints.saver.background
    deadline = time.monotonic() + 2
    while background and background.in_flight and run.progress.step == step and time.monotonic() < deadline:
        time.sleep(0.005)

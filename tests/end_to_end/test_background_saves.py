"""Checkpoints that are written while training goes on: the same bytes as in the foreground, and none is lost at an end."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from megatape.checkpoint import run_writer
from megatape.checkpoint.background import SaveInFlight
from megatape.checkpoint.contents import CheckpointContents
from megatape.checkpoint.environment import RunEnvironment
from megatape.checkpoint.manifest import MANIFEST, STATE
from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.errors import TrainingDiverged
from megatape.reliability.lease import hold
from megatape.run_folder import RunFolder
from megatape.training.start import Start
from megatape.training.startup.build_trainer import build_trainer
from megatape.training.trainer import Trainer
from megatape.utils.json_lines import read_lines
from tests.helpers.processes.workers import Workers, run_workers
from tests.helpers.runs.run_data import open_run_data

MODULE = "tests.end_to_end.test_background_saves"
STAGES: dict[str, dict[str, Any]] = {
    "stage 0": {"zero": {"stage": 0}},
    "stage 2, float32": {"zero": {"stage": 2}, "training": {"precision": "float32"}},
    "stage 3, T": {"zero": {"stage": 3}, "parallel": {"tp": 2}},
}


@pytest.mark.slow
def test_bytes_are_those_of_the_foreground(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Although weights, moments and generators have changed when they are written."""
    raw_config["checkpoint"] = {"interval": 1, "keep": 10}
    run_workers(f"{MODULE}:train_both_ways", 2, raw_config, tmp_path / "workers")
    for name in STAGES:
        folders = {way: RunFolder(tmp_path / "run" / name / str(way)) for way in (False, True)}
        for step in range(1, 5):
            hashes = []
            states = []
            for folder in folders.values():
                manifest = json.loads((folder.checkpoint(step) / MANIFEST).read_text())
                hashes.append({file: entry["sha256"] for file, entry in manifest["files"].items() if file != STATE})
                state = json.loads((folder.checkpoint(step) / STATE).read_text())
                states.append(state | {"config": state["config"] | {"run": None, "checkpoint": None}})
            assert hashes[0] == hashes[1] and len(hashes[0]) > 4, (name, step)
            assert states[0] == states[1], (name, step)
        events = [event for _, event in read_lines(folders[True].events) if event["event"] == "checkpoint"]
        assert [event["detail"].split(",")[0] for event in events] == [f"step-{step:08d}" for step in range(1, 5)]
        assert [event["step"] for event in events] == [2, 3, 4, 4], "three of them were complete a step later"


def train_both_ways(raw: dict[str, Any], topology: Topology) -> None:
    for name, changes in STAGES.items():
        for background in (False, True):
            changed = {section: raw.get(section, {}) | values for section, values in changes.items()}
            _train(raw | changed, topology, f"{name}/{background}", background)


def test_ends_while_a_save_is_in_flight(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """A signal, a failure of the very save that it came after, an error of the run, data that are lost: what is being written
    becomes complete, and the last step is saved."""
    raw_config["checkpoint"] = {"interval": 2, "keep": 10}
    raw_config["training"] |= {"steps": 9}
    (ends,) = run_workers(f"{MODULE}:end_in_every_way", 1, raw_config, tmp_path / "workers")
    kept = {name: [int(path.name[-8:]) for path in RunFolder(tmp_path / "run" / name).list_checkpoints()] for name in ends}
    for name, steps in kept.items():
        events = [event for _, event in read_lines(RunFolder(tmp_path / "run" / name).events) if event["event"] == "checkpoint"]
        assert [event["detail"].split(",")[0] for event in events] == [f"step-{step:08d}" for step in sorted(steps)], name
    assert ends == {"signal": "True", "failure": "True", "error": ends["error"], "later signal": "True"}
    assert kept == {"signal": [2], "failure": [2], "error": [2], "later signal": [3, 2]}
    assert "training.max_skipped_steps allows 0" in ends["error"]


def end_in_every_way(raw: dict[str, Any], topology: Topology) -> dict[str, str]:
    def interrupt(run: Trainer) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def interrupt_later(run: Trainer) -> None:
        run.engine.deepspeed.module.register_forward_pre_hook(lambda *_: interrupt(run))

    def spoil(run: Trainer) -> None:
        run.engine.deepspeed.module.register_forward_hook(lambda *told: told[-1] * torch.nan)

    ways = {"signal": interrupt, "failure": interrupt, "error": spoil, "later signal": interrupt_later}
    raw = raw | {"training": raw["training"] | {"max_skipped_steps": 0}}
    return {
        name: _train(raw, topology, name, True, after_begin=way, failing=name == "failure", held=way is not interrupt)
        for name, way in ways.items()
    }


def test_killed_while_a_save_is_in_flight(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """The checkpoint before it is used, and what was half written is removed."""
    raw_config["checkpoint"] = {"interval": 2}
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "payload.json").write_text(json.dumps(raw_config))
    folder = RunFolder(tmp_path / "run" / "killed")

    def partial() -> list[Path]:
        return list(folder.checkpoints.glob("step-00000004.*.tmp/weight-*"))

    with Workers(f"{MODULE}:train_until_killed", 1, tmp_path / "first") as workers:
        workers.wait(lambda: (partial() and _steps(folder) > 4) or not workers.running(), "a step during the save", 90)
        assert workers.running() == [0], workers.logs()
        workers.signal(signal.SIGKILL)
    assert partial()
    run_workers(f"{MODULE}:resume", 1, raw_config, tmp_path / "second")
    assert f"resumed from {folder.checkpoint(2)}" in (tmp_path / "second" / "rank0.log").read_text()
    assert [path.name for path in folder.checkpoints.iterdir() if path.suffix == ".tmp"] == []


def _steps(folder: RunFolder) -> int:
    return len(folder.metrics.read_bytes().splitlines()) if folder.metrics.exists() else 0


def train_until_killed(raw: dict[str, Any], topology: Topology) -> None:
    """Of the second checkpoint only the first file is written."""
    raw = raw | {"training": raw["training"] | {"steps": 1000}}

    def stick(run: Trainer) -> None:
        if run.state.step == 4:
            patch("megatape.checkpoint.writer.gather_values", lambda *_: time.sleep(600)).start()

    _train(raw, topology, "killed", True, before_begin=stick, held=False)


def resume(raw: dict[str, Any], topology: Topology) -> None:
    _train(raw, topology, "killed", True, held=False, resume="auto")


def _train(
    raw: dict[str, Any],
    topology: Topology,
    name: str,
    background: bool,
    before_begin: Callable[[Trainer], None] = lambda run: None,
    after_begin: Callable[[Trainer], None] = lambda run: None,
    failing: bool = False,
    held: bool = True,
    resume: str | None = None,
) -> str:
    """Train; returns whether it was stopped, or the error that ended it.

    before_begin, after_begin: called around the beginning of each save in the background. failing: the first save fails.
    held: a save in the background is not written before another step has been made."""
    raw = raw | {"run": {"directory": f"{raw['run']['directory']}/{name}"}}
    config = parse_config(raw | {"checkpoint": raw["checkpoint"] | {"background": background}}, name)
    print(f"case {name}", flush=True)
    with hold(RunFolder(Path(config.run.directory)).lease, topology) as lease, _writing_late(held, failing):
        run = build_trainer(config, open_run_data(config), topology, lease, Start(resume))
        run.engine.deepspeed.module.register_forward_pre_hook(lambda *_: torch.rand(1) and None)  # moves the generator
        RUNNING[:] = [run]
        torch.manual_seed(0)
        saving = run.checkpoints.saver.background
        begin = saving.start if saving else None

        def start(save: SaveInFlight, write: Callable[[], Path]) -> None:
            assert begin is not None
            before_begin(run)
            begin(save, write)
            after_begin(run)

        try:
            with patch.object(saving, "start", start) if saving else nullcontext():
                return str(run.train())
        except TrainingDiverged as error:
            return str(error)


RUNNING: list[Trainer] = []


@contextmanager
def _writing_late(held: bool, failing: bool) -> Iterator[None]:
    write = run_writer.write_checkpoint
    failures = [OSError("disk")] if failing else []

    def written(environment: RunEnvironment, contents: CheckpointContents) -> Path:
        deadline = time.monotonic() + 2
        step = contents.state.step
        background = RUNNING[0].checkpoints.saver.background
        while held and background and background.in_flight and RUNNING[0].state.step == step and time.monotonic() < deadline:
            time.sleep(0.005)
        if failures:
            raise failures.pop()
        return write(environment, contents)

    with patch.object(run_writer, "write_checkpoint", written):
        yield

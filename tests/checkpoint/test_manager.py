"""Saves that only seem to fail, and limits of the state that callbacks store in checkpoints."""

import copy
import errno
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from megatape.checkpoint.load.reader import CheckpointReader
from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.registry import CALLBACKS, Entry
from megatape.reliability.lease import hold
from megatape.run_folder import RunFolder
from megatape.training.callbacks.callback import Callback
from megatape.training.startup.build_trainer import build_trainer
from megatape.utils.files.json_files import MAX_DEPTH
from megatape.utils.files.json_lines import read_lines
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_data import open_run_data

STEPS = 3


class FullDisk(Callback):
    """Callback that raises an error of the file system after the second checkpoint."""

    def on_checkpoint(self, checkpoint: Path) -> None:
        if checkpoint.name.endswith("2"):
            raise OSError(errno.ENOSPC, "the callback's disk is full")


@contextmanager
def lost_answers() -> Iterator[None]:
    """Rename checkpoints, but report each rename as failed, as a file server may."""
    rename = os.rename

    def lose_answer(source: Any, target: Any) -> None:
        rename(source, target)
        if "step-" in Path(target).name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(source))

    with patch.object(os, "rename", lose_answer):
        yield


class Nested(Callback):
    """Callback whose state is nested too deeply for readers of checkpoints."""

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for _ in range(MAX_DEPTH):
            state = {"of the step before": state}
        return state


class Disturbance(NamedTuple):
    """A callback and a context to train with."""

    callback: type[Callback]
    context: AbstractContextManager[None] = nullcontext()
    background: bool = False


DISTURBANCES = {
    "lost answers": Disturbance(Callback, context=lost_answers()),
    "full disk": Disturbance(FullDisk),
    "full disk, background": Disturbance(FullDisk, background=True),
    "nested": Disturbance(Nested),
}


def train(raw: dict[str, Any], topology: Topology) -> dict[str, str | None]:
    """Train under each disturbance. Return the error that ends each run, or None if none does."""
    errors: dict[str, str | None] = {}
    for name, disturbance in DISTURBANCES.items():
        changed = copy.deepcopy(raw)
        changed["run"]["directory"] += f"/{name}"
        changed["checkpoint"] = {"interval": 1, "keep": 10, "background": disturbance.background}
        CALLBACKS["disturbing"] = Entry(f"{__name__}:{disturbance.callback.__name__}", "")
        changed["logging"]["callbacks"] = ["disturbing"]
        with disturbance.context:
            config = parse_config(changed, name)
            with hold(RunFolder(Path(config.run.directory)).lease, topology) as lease:
                try:
                    build_trainer(config, open_run_data(config), topology, lease).train()
                    errors[name] = None
                except OSError as error:
                    errors[name] = f"{type(error).__name__}: {error}"
    return errors


def test_saves_that_only_seem_to_fail(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Neither a callback's error after a save nor the error of a successful rename is a failed save.

    A callback's error ends the run. A callback's state that a resume could not read is dropped from the checkpoint.
    """
    raw_config["training"]["steps"] = STEPS
    (errors,) = run_workers("tests.checkpoint.test_manager:train", 1, raw_config, tmp_path / "workers")
    full = "OSError: [Errno 28] the callback's disk is full"
    assert errors == {"lost answers": None, "full disk": full, "full disk, background": full, "nested": None}

    for name, error in errors.items():
        folder = RunFolder(Path(raw_config["run"]["directory"]) / name)
        saved = [CheckpointReader(checkpoint).step for checkpoint in folder.list_checkpoints()]
        assert saved[-2:] == [2, 1], name
        if error is None:
            assert len(saved) == STEPS, name
        assert "save failed" not in {entry["event"] for _, entry in read_lines(folder.events)}, name

    log = (tmp_path / "workers" / "rank0.log").read_text()
    assert log.count("checkpoints lack the state of the callback disturbing (nested more than 62 levels deep)") == 1
    assert "could not be written" not in log, log
    assert "not saved" not in log, log

"""Work of the processes in training tests."""

import copy
import errno
import gc
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch.distributed as dist

from megatape.checkpoint import writer
from megatape.checkpoint.manifest import RNG
from megatape.checkpoint.reader import CheckpointReader
from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.errors import TrainingDiverged
from megatape.reliability.lease import hold
from megatape.run_folder import RunFolder
from megatape.training.sinks.json_lines import JsonLines
from megatape.training.start import Start
from megatape.training.startup.build_trainer import build_trainer
from megatape.utils import retries
from tests.helpers.runs.run_data import open_run_data

# Target of run_workers that trains every case of its payload.
TRAIN_CASES = "tests.helpers.runs.training_cases:train_cases"


def train_cases(payload: dict[str, Any], topology: Topology) -> list[dict[str, Any]]:
    """Train the cases of {"config": base, "cases": [{name, set, resume, base, only_save, profile}, ...]} one after the other.

    name: folder of the run below the base's. set: section.key -> value. only_save: write a checkpoint without training.
    profile: steps to trace.
    base, allow_changes: as in Run. fault: (one of FAULTS, how often it happens). remove: delete this folder before it saves.
    Returns for each where it started, or the error that ended it."""
    return [_train(payload["config"], case, topology) for case in payload["cases"]]


def _train(base: dict[str, Any], case: dict[str, Any], topology: Topology) -> dict[str, Any]:
    raw = copy.deepcopy(base)
    raw["run"]["directory"] = str(Path(raw["run"]["directory"]) / case["name"])
    for path, value in case.get("set", {}).items():
        section, _, key = path.partition(".")
        raw.setdefault(section, {})[key] = value
    print(f"case {case['name']}", flush=True)
    try:
        config = parse_config(raw, case["name"])
        fault = FAULTS[case["fault"][0]](case["fault"][1]) if "fault" in case else nullcontext()
        with fault, hold(RunFolder(Path(config.run.directory)).lease, topology) as lease:
            where = Path(case["base"]) if "base" in case else None
            start = Start(case.get("resume"), case.get("allow_changes", False), where, case.get("profile", 0))
            run = build_trainer(config, open_run_data(config), topology, lease, start)
            begun = {"step": run.state.step, "samples": run.state.samples}
            if "remove" in case:
                dist.barrier()
                if topology.is_main:
                    shutil.rmtree(case["remove"])
            if case.get("only_save"):
                run.checkpoints.ensure_saved()
            else:
                run.train()
    except (ValueError, OSError, TrainingDiverged) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:  # DeepSpeed keeps engines of stage 3, and collects garbage among them when it makes the next
        gc.collect()
        gc.freeze()
    return begun


def _times(count: int, error: Exception, function: Callable[..., Any], concerns: Callable[..., bool]) -> Callable[..., Any]:
    """`function`, the first `count` calls of which that `concerns` says yes to raise `error` instead."""
    left = count

    def wrapped(*arguments: Any) -> Any:
        nonlocal left
        if left and concerns(*arguments):
            left -= 1
            raise error
        return function(*arguments)

    return wrapped


@contextmanager
def _unreadable(count: int) -> Iterator[None]:
    """Hashing a checkpoint's files meets an error of the file system."""
    error = OSError(errno.EIO, os.strerror(errno.EIO), "disk")
    failing = _times(count, error, CheckpointReader.verify, lambda *_: True)
    with patch.object(CheckpointReader, "verify", failing), patch.object(retries, "WAITS", (0.01, 0.01)):
        yield


@contextmanager
def _unsaved(count: int) -> Iterator[None]:
    """The main rank cannot write the generators' state."""
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), RNG)
    failing = _times(count, error, writer.save_tensors, lambda _, path: path.name == RNG)
    with patch.object(writer, "save_tensors", failing), patch.object(retries, "WAITS", (0.01, 0.01)):
        yield


@contextmanager
def _full_disk(count: int) -> Iterator[None]:
    """metrics.jsonl cannot be written."""
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "metrics.jsonl")
    with patch.object(JsonLines, "_open", _times(count, error, JsonLines._open, lambda *_: True)):
        yield


FAULTS: dict[str, Callable[[int], AbstractContextManager[None]]] = {
    "unreadable": _unreadable,
    "unsaved": _unsaved,
    "full disk": _full_disk,
}

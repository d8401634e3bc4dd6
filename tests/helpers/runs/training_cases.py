"""Trains several cases in one group of ranks, with faults."""

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

from megatape.checkpoint.format.manifest import RNG
from megatape.checkpoint.load.reader import CheckpointReader
from megatape.checkpoint.save import writer
from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.errors import TrainingDiverged
from megatape.reliability.lease import hold
from megatape.run_folder import RunFolder
from megatape.training.sinks.json_lines import JsonLines
from megatape.training.start import Start
from megatape.training.startup.build_trainer import build_trainer
from megatape.utils.files import retries
from tests.helpers.runs.cpu_recorder import CpuRecorder
from tests.helpers.runs.run_data import open_run_data

# Target for run_workers, training every case in its payload
TRAIN_CASES = "tests.helpers.runs.training_cases:train_cases"


def train_cases(payload: dict[str, Any], topology: Topology) -> list[dict[str, Any]]:
    """Train cases one after the other.

    Args:
        payload: {"config": configuration, "cases": [case, ...]}. A case is a dictionary with these keys, of which only `name`
            is required:

            * name: Name of the run directory, below that of the configuration.
            * set: Changed settings, section.key -> value.
            * resume, base, allow_changes: Options of the start, see `Start`.
            * profile: Number of steps to trace.
            * recorded: Whether to replay the passes by a CpuRecorder, if training.cuda_graphs asks for it.
            * only_save: Whether to write a checkpoint without training.
            * fault: (key of FAULTS, number of times that it happens).
            * remove: Folder to delete before training or saving.
        topology: Ranks of the group.

    Returns:
        For each case {"step": first step, "samples": samples before it}, or {"error": error that ended it}.
    """
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
            make_recorder = CpuRecorder if case.get("recorded") else None
            run = build_trainer(config, open_run_data(config), topology, lease, start, make_recorder=make_recorder)
            begun = {"step": run.progress.step, "samples": run.progress.samples}
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
    finally:
        # DeepSpeed keeps stage 3's engines. Unless frozen, the garbage collector would visit all of them for each new one.
        gc.collect()
        gc.freeze()
    return begun


def _times(count: int, error: Exception, function: Callable[..., Any], concerns: Callable[..., bool]) -> Callable[..., Any]:
    """Return a function that raises an error in its first calls, and otherwise calls `function`.

    Args:
        count: Number of calls that raise the error.
        error: Error to raise.
        function: Function to call.
        concerns: Returns whether a call with these arguments counts.
    """
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
    """Let hashing a checkpoint's files fail with an error of the file system."""
    error = OSError(errno.EIO, os.strerror(errno.EIO), "disk")
    failing = _times(count, error, CheckpointReader.verify, lambda *_: True)
    with patch.object(CheckpointReader, "verify", failing), patch.object(retries, "WAITS", (0.01, 0.01)):
        yield


@contextmanager
def _unsaved(count: int) -> Iterator[None]:
    """Let writing the generators' state fail."""
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), RNG)
    failing = _times(count, error, writer.save_tensors, lambda _, path: path.name == RNG)
    with patch.object(writer, "save_tensors", failing), patch.object(retries, "WAITS", (0.01, 0.01)):
        yield


@contextmanager
def _full_disk(count: int) -> Iterator[None]:
    """Let opening metrics.jsonl fail."""
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "metrics.jsonl")
    with patch.object(JsonLines, "_open", _times(count, error, JsonLines._open, lambda *_: True)):
        yield


FAULTS: dict[str, Callable[[int], AbstractContextManager[None]]] = {
    "unreadable": _unreadable,
    "unsaved": _unsaved,
    "full disk": _full_disk,
}

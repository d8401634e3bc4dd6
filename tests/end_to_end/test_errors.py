"""Errors on one rank and on all: a UserError is one line in total, anything else one traceback, and all ranks end."""

import os
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
import torch

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.errors import UserError
from megatape.reliability.watch.timeouts import WatchTimeouts
from megatape.run_folder import RunFolder
from megatape.training.pretrain import pretrain
from megatape.training.trainer import Trainer
from tests.helpers.processes.workers import start_workers

ERRORS = {
    "user": UserError("the base was removed: put it back"),
    "program": KeyError("number"),
    "memory": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has 79 GiB"),
}


class Ends(NamedTuple):
    """Both ranks' exit statuses and outputs."""

    statuses: list[int | None]
    outputs: list[str]


def fail(payload: dict[str, Any], topology: Topology) -> NoReturn:
    """Train until some ranks raise an error in their second step."""
    original_step = Trainer.train_step

    def train_step(run: Trainer, *arguments: Any) -> Any:
        if run.progress.step == 1 and topology.rank in payload["ranks"]:
            raise ERRORS[payload["error"]]
        return original_step(run, *arguments)

    Trainer.train_step = train_step  # type: ignore[method-assign, assignment]
    timeouts = WatchTimeouts(period=0.2, silence=30.0, grace=5.0)
    os._exit(pretrain(parse_config(payload["config"], "test"), timeouts=timeouts))


def train_until_error(raw_config: dict[str, Any], folder: Path, error: str, ranks: list[int]) -> Ends:
    """Train on two ranks until `ranks` of them fail with an error of ERRORS."""
    payload = {"config": raw_config, "error": error, "ranks": ranks}
    with start_workers("tests.end_to_end.test_errors:fail", 2, payload, folder) as workers:
        statuses = workers.statuses(90)
        return Ends(statuses, [workers.logs([rank]) for rank in workers.ranks])


def lines_with(text: str, outputs: list[str]) -> list[str]:
    return [line for output in outputs for line in output.splitlines() if text in line]


@pytest.mark.parametrize("ranks", [[1], [0, 1]], ids=["one rank", "both ranks"])
def test_an_error_of_the_user_is_shown_once(raw_config: dict[str, Any], tmp_path: Path, ranks: list[int]) -> None:
    statuses, outputs = train_until_error(raw_config, tmp_path / "workers", "user", ranks)

    assert statuses == [2, 2]
    lines = lines_with("the base was removed", outputs)
    assert lines in [[f"error on rank {rank}: {ERRORS['user']}"] for rank in ranks], outputs
    assert lines_with("Traceback", outputs) == []


def test_exhausted_memory_is_shown_in_a_line(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """The other rank ends as after any failing rank."""
    statuses, outputs = train_until_error(raw_config, tmp_path / "workers", "memory", [1])

    assert statuses == [1, 1], outputs
    assert lines_with("Traceback", outputs) == []
    lines = lines_with("error", outputs[1:])
    assert len(lines) == 1, outputs
    assert "error on rank 1: out of memory in step 2 of this process" in lines[0], outputs
    assert "--set training.micro_batch_size=2 needs" in lines[0], outputs
    assert "error on rank 0: rank 1 failed: OutOfMemoryInStep: out of memory" in outputs[0], outputs


@pytest.mark.parametrize("ranks", [[1], [0, 1]], ids=["one rank", "both ranks"])
def test_an_error_of_the_program_has_one_traceback(raw_config: dict[str, Any], tmp_path: Path, ranks: list[int]) -> None:
    """The rank that failed first shows its traceback. The other rank's stacks are in a file."""
    statuses, outputs = train_until_error(raw_config, tmp_path / "workers", "program", ranks)

    assert statuses == [1, 1], outputs
    (first,) = [rank for rank, output in enumerate(outputs) if "Traceback" in output and "KeyError: 'number'" in output]
    assert first in ranks
    assert "in train_step" in outputs[first], outputs
    other = 1 - first
    assert f"error on rank {other}: rank {first} failed: KeyError: 'number'; the run ends here" in outputs[other], outputs
    assert "Traceback" not in outputs[other]
    folder = RunFolder(Path(raw_config["run"]["directory"]))
    assert "Traceback" in folder.stacks(other).read_text()

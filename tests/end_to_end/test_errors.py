"""Errors of one rank and of all: a UserError is one line in all, anything else one traceback, and all ranks end."""

import json
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.errors import UserError
from megatape.reliability.watch.timeouts import WatchTimeouts
from megatape.run_folder import RunFolder
from megatape.training.pretrain import pretrain
from megatape.training.trainer import Trainer
from tests.helpers.processes.workers import Workers

ERRORS = {
    "user": UserError("the base was removed: put it back"),
    "program": KeyError("number"),
    "memory": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has 79 GiB"),
}


def fail(payload: dict[str, Any], topology: Topology) -> NoReturn:
    """Train, until these ranks raise the error in their second step."""
    make = Trainer.train_step

    def train_step(run: Trainer, *arguments: Any) -> Any:
        if run.state.step == 1 and topology.rank in payload["ranks"]:
            raise ERRORS[payload["error"]]
        return make(run, *arguments)

    Trainer.train_step = train_step  # type: ignore[method-assign, assignment]
    os._exit(pretrain(parse_config(payload["config"], "test"), timeouts=WatchTimeouts(period=0.2, silence=30.0, grace=5.0)))


def logs(raw_config: dict[str, Any], folder: Path, error: str, ranks: list[int]) -> tuple[list[int | None], list[str]]:
    """Statuses and errors of two ranks, these of which fail."""
    folder.mkdir()
    (folder / "payload.json").write_text(json.dumps({"config": raw_config, "error": error, "ranks": ranks}))
    with Workers("tests.end_to_end.test_errors:fail", 2, folder) as workers:
        return workers.statuses(90), [workers.logs([rank]) for rank in (0, 1)]


@pytest.mark.parametrize("ranks", [[1], [0, 1]])
def test_an_error_of_the_user_is_shown_once(raw_config: dict[str, Any], tmp_path: Path, ranks: list[int]) -> None:
    statuses, texts = logs(raw_config, tmp_path / "workers", "user", ranks)
    lines = [line for text in texts for line in text.splitlines() if "the base was removed" in line]
    assert statuses == [2, 2] and lines in [[f"error on rank {rank}: {ERRORS['user']}"] for rank in ranks], texts
    assert "Traceback" not in "".join(texts)


def test_exhausted_memory_is_shown_in_a_line(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """The other rank ends as after any failure of a rank."""
    statuses, texts = logs(raw_config, tmp_path / "workers", "memory", [1])
    lines = [line for line in texts[1].splitlines() if "error" in line]
    assert statuses == [1, 1] and "Traceback" not in "".join(texts), texts
    assert len(lines) == 1 and "error on rank 1: out of memory in step 2 of this process" in lines[0], texts
    assert "--set training.micro_batch_size=2 needs" in lines[0], texts
    assert "error on rank 0: rank 1 failed: OutOfMemory: out of memory" in texts[0], texts


@pytest.mark.parametrize("ranks", [[1], [0, 1]])
def test_an_error_of_the_program_has_one_traceback(raw_config: dict[str, Any], tmp_path: Path, ranks: list[int]) -> None:
    """In full from the rank that failed first; that of the other one is in a file."""
    statuses, texts = logs(raw_config, tmp_path / "workers", "program", ranks)
    (first,) = [rank for rank, text in enumerate(texts) if "Traceback" in text and "KeyError: 'number'" in text]
    other = 1 - first
    assert first in ranks and statuses == [1, 1] and "in train_step" in texts[first], texts
    assert f"error on rank {other}: rank {first} failed: KeyError: 'number'; the run ends here" in texts[other], texts
    assert "Traceback" not in texts[other]
    assert "Traceback" in RunFolder(Path(raw_config["run"]["directory"])).stacks(other).read_text()

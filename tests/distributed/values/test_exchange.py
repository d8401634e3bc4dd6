"""Errors that ranks exchange keep their type on every rank. Other errors stay on their rank."""

import errno
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from megatape.distributed.topology import Topology
from megatape.distributed.values import exchange
from megatape.distributed.values.exchange import on_all, on_each, on_main
from megatape.distributed.values.serialization import decode, encode
from megatape.errors import LeaseLost, MissingPath, NotSaved, PathError, UserError, path_error
from tests.helpers.processes.workers import run_workers


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Values of the other ranks. This rank is rank 0."""
    found: list[Any] = []
    monkeypatch.setattr(exchange, "gather_values", lambda mine, *_: [mine, *found])
    return found


def meet(error: Exception) -> Any:
    """Return work that raises an error."""

    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize(
    "error",
    [
        LeaseLost("taken over"),
        NotSaved("steps 3 to 4 are not saved"),
        OSError(errno.EIO, "Input/output error", "index.json"),
        FileNotFoundError(errno.ENOENT, "No such file", "index.json"),
        path_error(PermissionError(errno.EACCES, "Permission denied", "run")),
        path_error(FileNotFoundError(errno.ENOENT, "No such file", "run")),
        UserError("give another one"),
    ],
)
def test_an_error_of_the_main_rank_keeps_its_type(error: Exception, others: list[Any]) -> None:
    """The error is raised on the main rank, and on a rank that learns of it."""
    others.append([None, None])
    with pytest.raises(type(error)) as met:
        on_main(meet(error), Topology(0, 2, 0))
    others[:] = []
    with pytest.MonkeyPatch.context() as patch, pytest.raises(type(error)) as learned:
        patch.setattr(exchange, "gather_values", lambda mine, *_: [[None, decode(encode(error))], mine])
        on_main(meet(AssertionError()), Topology(1, 2, 1))
    for found in (met.value, learned.value):
        assert type(found) is type(error)
        assert str(found) == str(error)
        assert getattr(found, "errno", None) == getattr(error, "errno", None)
        assert vars(found)["everywhere"], "so that one rank shows it"


def test_the_ranks_that_met_an_error_are_named(others: list[Any]) -> None:
    full = PathError("disk full")
    full.errno = errno.ENOSPC
    topology = Topology(0, 3, 0)
    others[:] = [[None, full], [None, full]]
    with pytest.raises(PathError, match="^saving: ranks 1-2: disk full$") as met:
        on_all(lambda: None, topology, context="saving: ")
    assert met.value.errno == errno.ENOSPC
    with pytest.raises(PathError, match="^disk full$"):
        on_all(meet(PathError("disk full")), topology)
    with pytest.raises(MissingPath, match="^rank 0: gone; ranks 1-2: disk full$"):
        on_all(meet(MissingPath("gone")), topology)


def test_each_rank_has_its_own_result(others: list[Any]) -> None:
    """Results of `on_each` are not sent, so any type will do. Errors are raised on all ranks."""
    topology = Topology(0, 2, 0)
    own = object()
    others[:] = [[None, None]]
    assert on_each(lambda: own, topology) is own
    others[:] = [[None, PathError("disk full")]]
    with pytest.raises(PathError, match="^opening: rank 1: disk full$"):
        on_each(lambda: own, topology, context="opening: ")


def test_values_of_all_ranks(others: list[Any]) -> None:
    others[:] = [[2, None], [3, None]]
    assert on_all(lambda: 1, Topology(0, 3, 0)) == [1, 2, 3]


def exchange_with_a_stranger(payload: None, topology: Topology) -> str:
    """Exchange a value on rank 0 with a process that sends a pickle in place of rank 1. Return the outcome."""
    if topology.is_main:
        try:
            return str(exchange.gather_values("a value", topology))
        except ValueError as error:
            return f"ValueError: {error}"
    text = pickle.dumps(Ending())
    sizes = torch.empty(2, dtype=torch.int64)
    dist.all_gather_into_tensor(sizes, torch.tensor([len(text)]))
    own = torch.zeros(int(sizes.max()), dtype=torch.uint8)
    own[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    dist.all_gather_into_tensor(torch.empty(2 * len(own), dtype=torch.uint8), own)
    return ""


class Ending:
    """Value whose pickle ends the process reading it."""

    def __reduce__(self) -> Any:
        return exec, ("import os; print('a pickle ran'); os._exit(3)",)


def test_what_another_process_sends_does_not_run(tmp_path: Path) -> None:
    found = run_workers("tests.distributed.values.test_exchange:exchange_with_a_stranger", 2, None, tmp_path)
    assert found[0].startswith("ValueError: "), found


def exchange_values(payload: None, topology: Topology) -> list[Any]:
    """Exchange values of several lengths. Return the values that this rank receives."""
    return exchange.gather_values(["x" * 1000 * topology.rank, topology.rank, ("a", None)], topology)


def test_values_of_several_lengths(tmp_path: Path) -> None:
    found = run_workers("tests.distributed.values.test_exchange:exchange_values", 3, None, tmp_path)
    assert found == [[["x" * 1000 * rank, rank, ["a", None]] for rank in range(3)]] * 3


def test_an_error_of_the_program_stays_on_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error keeps its traceback, and no values are gathered. The watch tells the other ranks that this rank has failed."""
    monkeypatch.setattr(exchange, "gather_values", None)
    for error in (ValueError("too many values"), KeyError("name")):
        with pytest.raises(type(error)) as met:
            on_all(meet(error), Topology(0, 2, 0))
        assert met.value is error

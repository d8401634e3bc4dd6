"""Errors that ranks exchange keep their type, on every rank; others stay where they are."""

import errno
from typing import Any

import pytest

from megatape.errors import LeaseLost, MissingPath, NotSaved, PathError, UserError, path_error
from megatape.runtime import exchange
from megatape.runtime.exchange import on_all, on_main
from megatape.runtime.topology import Topology


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the other ranks exchange; this one is the first of all."""
    found: list[Any] = []
    monkeypatch.setattr(exchange, "exchange", lambda mine, *_: [mine, *found])
    return found


def meet(error: Exception) -> Any:
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
    """On the main rank, and on one that only learns of it."""
    others.append([None, None])
    with pytest.raises(type(error)) as met:
        on_main(meet(error), Topology(0, 2, 0))
    others[:] = []
    with pytest.MonkeyPatch.context() as patch, pytest.raises(type(error)) as learned:
        patch.setattr(
            exchange, "exchange", lambda mine, *_: [[None, (type(error), str(error), getattr(error, "errno", None))], mine]
        )
        on_main(meet(AssertionError()), Topology(1, 2, 1))
    for found in (met.value, learned.value):
        assert type(found) is type(error) and str(found) == str(error)
        assert getattr(found, "errno", None) == getattr(error, "errno", None)
        assert vars(found)["everywhere"], "so that one rank shows it"


def test_the_ranks_that_met_an_error_are_named(others: list[Any]) -> None:
    full = (PathError, "disk full", errno.ENOSPC)
    topology = Topology(0, 3, 0)
    others[:] = [[None, full], [None, full]]
    with pytest.raises(PathError, match="^saving: ranks 1-2: disk full$") as met:
        on_all(lambda: None, topology, context="saving: ")
    assert met.value.errno == errno.ENOSPC
    with pytest.raises(PathError, match="^disk full$"):
        on_all(meet(PathError("disk full")), topology)
    with pytest.raises(MissingPath, match="^rank 0: gone; ranks 1-2: disk full$"):
        on_all(meet(MissingPath("gone")), topology)


def test_values_of_all_ranks(others: list[Any]) -> None:
    others[:] = [[2, None], [3, None]]
    assert on_all(lambda: 1, Topology(0, 3, 0)) == [1, 2, 3]


def test_an_error_of_the_program_stays_on_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its traceback, and without an exchange, in which the other ranks learn that this one has failed."""
    monkeypatch.setattr(exchange, "exchange", None)
    for error in (ValueError("too many values"), KeyError("name")):
        with pytest.raises(type(error)) as met:
            on_all(meet(error), Topology(0, 2, 0))
        assert met.value is error

"""Errors of ranks that divide an evaluation."""

import pytest

from megatape.runtime import exchange
from megatape.runtime.topology import Topology
from megatape.tasks.engine.ranks import FailedElsewhere, Ranks


def test_the_main_rank_tells_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("the disk is full")

    full = ["builtins:OSError", "the disk is full", None]
    for rank, error in ((0, OSError), (1, FailedElsewhere)):
        monkeypatch.setattr(exchange, "exchange", lambda mine, *_: [mine, [None, full]])
        for work in (fail, lambda: None):  # this process, or only the other
            with pytest.raises(error, match="the disk is full" if rank == 0 else None):
                Ranks(Topology(rank, 2, rank), rank, 2).together(work)

"""Held leases: heartbeats, loss and release."""

import os
import time
from pathlib import Path

import pytest

from megatape.errors import LeaseLost
from megatape.reliability.lease import Lease, check_free
from tests.helpers.processes.clock import Clock
from tests.helpers.processes.leases import TIMEOUTS, take
from tests.helpers.processes.waiting import wait_until


def test_held_and_released(path: Path) -> None:
    lease = take(path)
    lease.check()
    with pytest.raises(
        ValueError, match=rf"{path.parent} is in use by a run: process {os.getpid()} on host .*, since 20.*kill -TERM"
    ):
        Lease(path, TIMEOUTS).attempt()
    with pytest.raises(ValueError, match="is in use by a run"):
        check_free(path, TIMEOUTS)
    lease.release()
    check_free(path)
    assert list(path.parent.iterdir()) == []
    take(path).release()


def test_removed_by_hand(path: Path) -> None:
    """A removed lease is written again, unless another process may have taken it over."""
    clock = Clock()
    lease = take(path, clock=clock)
    path.unlink()
    wait_until(path.exists, "the lease, written again", 5)
    lease.check()
    lease.stop_heartbeats()
    path.unlink()
    clock.now += 3600
    with pytest.raises(LeaseLost):
        lease.check()
    lease.release()


def test_a_file_server_that_is_away_ends_nothing(path: Path) -> None:
    """The holder keeps the lease while the server is away, and after the expiry it waits for the server until asked to end."""
    clock = Clock()
    lease = take(path, clock=clock)
    warnings = list[str]()
    assert not lease.is_late
    aside = path.parent.rename(path.parent.with_name("aside"))
    lease.stop_heartbeats()
    clock.now += 3 * TIMEOUTS.heartbeat_interval
    assert lease.is_late
    lease.check()
    clock.now += 3600
    with pytest.raises(OSError, match=f"No such file or directory: '{path.parent}'"):
        lease.check()
    lease.wait(lambda: True, warnings.append)
    assert warnings == []

    def warn(line: str) -> None:
        warnings.append(line)
        aside.rename(path.parent)

    deadline = time.monotonic() + 60
    lease.wait(lambda: time.monotonic() > deadline, warn)
    assert len(warnings) == 1
    assert f"run.directory {path.parent} has not answered for 3600 s" in warnings[0]
    assert not lease.is_late
    lease.release()
    assert not path.exists()


def test_a_folder_that_comes_back_between_two_looks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is missing while its folder exists, which looks like a lost lease."""
    clock = Clock()
    lease = take(path, clock=clock)
    lease.stop_heartbeats()
    aside = path.parent.rename(path.parent.with_name("aside"))
    stat = Path.stat

    def come_back(self: Path, **settings: bool) -> os.stat_result:
        if self == path.parent and aside.exists():
            aside.rename(path.parent)
        return stat(self, **settings)

    monkeypatch.setattr(Path, "stat", come_back)
    clock.now += 3600
    with pytest.raises(OSError, match=f"No such file or directory: '{path}'"):
        lease.check()
    lease.check()
    assert not lease.is_late
    lease.release()

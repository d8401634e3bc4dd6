"""Looking at a lease without waiting."""

import os
from functools import partial
from pathlib import Path

import pytest

from megatape.errors import UserError
from megatape.reliability.lease import Lease, check_free
from tests.helpers.processes.leases import elsewhere


@pytest.mark.timeout(30)
def test_a_pipe_is_not_waited_for(path: Path) -> None:
    """A pipe without a writer takes the lease's place."""
    path.parent.mkdir()
    os.mkfifo(path)
    for look in (partial(check_free, path), Lease(path).attempt):
        with pytest.raises(UserError, match="lease.json: a pipe or a device, not a file"):
            look()


def test_heartbeat_in_the_future_is_refused_without_waiting(path: Path) -> None:
    """A heartbeat in the future may belong to a live run. The error says so, and its remedy works."""
    path.parent.mkdir()
    path.write_bytes(elsewhere().content())
    beat = 4102444800.0
    os.utime(path, (beat, beat))
    with pytest.raises(UserError, match="cannot tell .*last heartbeat at 2100-01-01 00:00:00 UTC.*remove the file"):
        check_free(path)
    path.unlink()
    check_free(path)
    assert list(path.parent.iterdir()) == []

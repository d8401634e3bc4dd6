"""Leases with short times, for tests."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from megatape.reliability.lease import Lease
from megatape.reliability.lease.holder import Holder, this_process
from megatape.reliability.lease.timeouts import LeaseTimeouts

TIMEOUTS = LeaseTimeouts(heartbeat_interval=0.1, expiry=0.6, settle=0.05, poll_interval=0.02)


def take(path: Path, tries: int = 50, **settings: Any) -> Lease:
    """Take a lease, perhaps after waiting. Raises UserError if a live holder refuses it."""
    lease = Lease(path, TIMEOUTS, **settings)
    assert any(lease.attempt() for _ in range(tries))
    return lease


def elsewhere() -> Holder:
    """Return a holder on another machine, with processes invisible from here."""
    return replace(this_process(), machine="another", host="n7")

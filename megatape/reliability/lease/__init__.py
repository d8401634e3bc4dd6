"""Leases: files that let one process at a time use a folder, on any file system that hosts share."""

from megatape.reliability.lease.in_use import check_free
from megatape.reliability.lease.lease import Lease, hold
from megatape.reliability.lease.timeouts import LeaseTimeouts

__all__ = ["Lease", "LeaseTimeouts", "check_free", "hold"]

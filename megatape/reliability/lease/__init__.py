"""Leases: files that reserve a folder for one process, on any file system that hosts share.

lease.py              takes, renews and releases a lease: start here
takeover.py           takes over the lease of a dead holder
in_use.py             the error if the holder is alive
lease_file.py         reads and writes the file
holder.py             the process named in the file
heartbeat_monitor.py  notices whether the holder still sends heartbeats
timeouts.py           timeouts of all of these
"""

from megatape.reliability.lease.in_use import check_free
from megatape.reliability.lease.lease import Lease, hold
from megatape.reliability.lease.timeouts import LeaseTimeouts

__all__ = ["Lease", "LeaseTimeouts", "check_free", "hold"]

"""Leases: files that reserve a folder for one process, on any file system that hosts share.

lease.py takes, renews and releases a lease, takeover.py takes over a dead holder's, and in_use.py is the error if the holder is
alive. lease_file.py reads and writes the file, holder.py is the process named in it, and heartbeat_monitor.py notices whether
the holder still sends heartbeats.
"""

from megatape.reliability.lease.in_use import check_free
from megatape.reliability.lease.lease import Lease, hold
from megatape.reliability.lease.timeouts import LeaseTimeouts

__all__ = ["Lease", "LeaseTimeouts", "check_free", "hold"]

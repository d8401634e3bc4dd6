"""The error about a run directory that another run uses, and a check that needs no waiting."""

from pathlib import Path

from megatape.errors import UserError
from megatape.reliability.lease.holder import Holder
from megatape.reliability.lease.lease_file import read_lease
from megatape.reliability.lease.timeouts import DEFAULT_TIMEOUTS, LeaseTimeouts
from megatape.utils.files.files import file_system_time
from megatape.utils.text.units import format_time

# Names a holder whose file is unfinished or corrupted.
UNKNOWN = "an unknown process"


def check_free(path: Path, timeouts: LeaseTimeouts = DEFAULT_TIMEOUTS) -> None:
    """Check that no run holds a lease, by reading its file once.

    Args:
        path: The lease's file.
        timeouts: Lease timeouts.

    Raises:
        UserError: A run holds the lease, or a process on another machine that may be alive: its last heartbeat is recent by the
            file system's clock.
    """
    try:
        lease = read_lease(path)
    except FileNotFoundError:
        return
    holder = lease.holder()
    is_dead = None
    if holder is not None:
        is_dead = holder.is_dead()
    if is_dead:
        return
    if is_dead is False:
        raise in_use_error(path, holder)
    expiry = timeouts.expiry
    now = file_system_time(path.parent)
    if now - lease.heartbeat < expiry:
        heartbeat = format_time(lease.heartbeat)
        raise UserError(
            f"cannot tell whether a run uses run.directory {path.parent}: {path} is held by {holder or UNKNOWN}, last "
            f"heartbeat at {heartbeat}, now it is {format_time(now)} on that file system. Try again {expiry:.0f} s after its "
            "end, choose another folder, or remove the file if no run trains there"
        )


def in_use_error(path: Path, holder: Holder | None) -> UserError:
    """Return the error about a run directory that another run uses.

    Args:
        path: The lease's file.
        holder: Its holder, None if unknown.
    """
    if holder is None:
        return UserError(f"run.directory {path.parent} is in use by {UNKNOWN}, see {path}: choose another folder")
    return UserError(
        f"run.directory {path.parent} is in use by a run: {holder}. Wait for it, stop it (kill -TERM {holder.pid} on "
        f"{holder.host} lets it write a checkpoint), or choose another folder"
    )

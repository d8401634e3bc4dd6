"""Refusal of a folder that another run uses, and the check for one before a run is started."""

from pathlib import Path

from megatape.errors import UserError
from megatape.reliability.lease.holder import Holder
from megatape.reliability.lease.lease_file import read_lease
from megatape.reliability.lease.timeouts import DEFAULT_TIMEOUTS, LeaseTimeouts
from megatape.utils.files import file_system_time
from megatape.utils.units import format_time

# Name of a holder whose file is unfinished or corrupted.
UNKNOWN = "an unknown process"


def check_free(path: Path, timeouts: LeaseTimeouts = DEFAULT_TIMEOUTS) -> None:
    """Check that no run holds a lease, by one look at the file.

    Args:
        path: File of the lease.
        timeouts: Times of the lease.

    Raises:
        UserError: A run holds the lease, or a process of another machine that may live: its last heartbeat is not old by the
            file system's clock.
    """
    try:
        found = read_lease(path)
    except FileNotFoundError:
        return
    holder = found.holder()
    dead = None
    if holder is not None:
        dead = holder.is_dead()
    if dead:
        return
    if dead is False:
        raise refusal(path, holder)
    expiry = timeouts.expiry
    now = file_system_time(path.parent)
    if now - found.heartbeat < expiry:
        heartbeat = format_time(found.heartbeat)
        raise UserError(
            f"cannot tell whether a run uses run.directory {path.parent}: {path} is held by {holder or UNKNOWN}, last "
            f"heartbeat at {heartbeat}, now it is {format_time(now)} on that file system. Try again {expiry:.0f} s after its "
            "end, choose another folder, or remove the file if no run trains there"
        )


def refusal(path: Path, holder: Holder | None) -> UserError:
    """Return the error of a run whose folder another one uses.

    Args:
        path: File of the lease.
        holder: Holder of the lease, None if it is unknown.
    """
    if holder is None:
        return UserError(f"run.directory {path.parent} is in use by {UNKNOWN}, see {path}: choose another folder")
    return UserError(
        f"run.directory {path.parent} is in use by a run: {holder}. Wait for it, stop it (kill -TERM {holder.pid} on "
        f"{holder.host} lets it write a checkpoint), or choose another folder"
    )

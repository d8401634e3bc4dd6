"""Holder of a lease: a process, and whether it is alive.

On the same machine, the process table shows at once that a process has ended.
"""

import json
import os
import secrets
import socket
import time
from dataclasses import asdict, dataclass
from typing import Annotated

from pydantic import Field

from megatape.utils.files.json_files import parse_json
from megatape.utils.processes.process_table import boot_id, read_process
from megatape.utils.text.units import format_time
from megatape.utils.values.validation import as_type

# Hexadecimal digits of a holder's unique name.
NONCE_DIGITS = 16


@dataclass(frozen=True)
class Holder:
    """Process that holds a lease.

    Attributes:
        host: Host name.
        pid: Process id.
        machine: Boot and process namespace that `pid` belongs to, empty if unknown.
        started: Start time of the process in ticks since boot, empty if unknown.
        since: When it became the holder, in UTC.
        nonce: Unique name of the holder.
    """

    host: str
    pid: Annotated[int, Field(gt=0, lt=2**31)]
    machine: str
    started: str
    since: str
    nonce: str

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}, since {self.since}"

    def content(self) -> bytes:
        """Return the content of the lease's file."""
        return json.dumps(asdict(self)).encode()

    def is_dead(self) -> bool | None:
        """Whether the process has ended. None if this process cannot tell."""
        if not self.machine or self.machine != _machine_id():
            return None
        try:
            return _start_time(self.pid) != self.started
        except OSError:
            # The process has ended, or is hidden because it is another user's.
            return not _pid_exists(self.pid)

    def is_stopped(self) -> bool:
        """Whether SIGSTOP or a debugger stopped the process. False if unknown."""
        try:
            return self.is_dead() is False and read_process(self.pid).is_stopped
        except OSError:
            return False


def this_process() -> Holder:
    """Return this process as a holder."""
    machine = _machine_id()
    started = ""
    if machine:
        started = _start_time(os.getpid())
    return Holder(
        host=socket.gethostname(),
        pid=os.getpid(),
        machine=machine,
        started=started,
        since=format_time(time.time()),
        nonce=secrets.token_hex(NONCE_DIGITS // 2),
    )


def read_holder(content: bytes) -> Holder | None:
    """Parse the content of a lease's file. Returns None if it is unfinished or corrupted."""
    try:
        return as_type(parse_json(content), Holder)
    except ValueError:
        return None


def _machine_id() -> str:
    """Return boot and process namespace, because containers have process ids of their own. Empty if unknown."""
    boot = boot_id()
    if not boot:
        return ""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return ""
    return f"{boot} {namespace}"


def _start_time(pid: int) -> str:
    """Return a process's start time, which distinguishes it from later ones with the same id; empty if it has ended.

    Raises:
        OSError: The process table does not show such a process.
    """
    entry = read_process(pid)
    if entry.has_ended:
        return ""
    return str(entry.start_ticks)


def _pid_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        # PermissionError: the process is another user's.
        return not isinstance(error, ProcessLookupError)
    return True

"""Linux's table of processes, and the machine's boot: its id, and the time since then.

It is read without psutil, which takes another user's hidden process for an ended one, and derives start times from a clock that
may be changed.
"""

import time
from pathlib import Path
from typing import NamedTuple

from megatape.errors import PathError

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Index of a process's start in its entry, behind the program's name (proc(5)).
START_TICKS = 19


class ProcessEntry(NamedTuple):
    """Entry of a process in the table.

    Attributes:
        state: State of the process, a letter: "R" for running, "T" for stopped, "Z" for a zombie.
        start_ticks: Start of the process, in clock ticks since boot. It distinguishes the process from later ones with its id.
    """

    state: str
    start_ticks: int

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended. A zombie has ended, although its parent has not noticed."""
        return self.state in "ZX"

    @property
    def is_stopped(self) -> bool:
        """Whether SIGSTOP or a debugger has stopped the process."""
        return self.state in "Tt"


def read_process(pid: int) -> ProcessEntry:
    """Return the entry of a process.

    Raises:
        OSError: The table does not show such a process, or has another format.
    """
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    # The name of the program is in parentheses. It may contain any characters.
    _, _, rest = text.rpartition(")")
    fields = rest.split()
    if len(fields) <= START_TICKS:
        raise PathError(f"/proc/{pid}/stat: {len(fields)} fields after the name of the program")
    return ProcessEntry(fields[0], int(fields[START_TICKS]))


def boot_id() -> str:
    """Return the id of the machine's boot, empty if unknown."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def seconds_since_boot() -> float:
    """Return seconds since boot, including suspension. Setting the clock does not change them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)

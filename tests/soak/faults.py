"""Faults of a run: killed, stopped and signaled processes, and full disks."""

import os
import signal
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field

from megatape.errors import ExitStatus
from tests.soak.disk import Disk
from tests.soak.launch import ForkedStart, Start
from tests.soak.progress import Progress
from tests.soak.schedule import Fault

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT)
KILLED = -signal.SIGKILL
STOPPED = {ExitStatus.DONE, ExitStatus.UNFINISHED}  # DONE: after SIGINT
# Statuses after a signal before the first step.
UNREADY = {ExitStatus.DIED, ExitStatus.INTERRUPTED, *(-number for number in SIGNALS)}
# Statuses on a full disk: at the start, later, at the end.
UNWRITTEN = {ExitStatus.USER_ERROR, ExitStatus.DIED, ExitStatus.NOT_SAVED}


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        act: Lets the fault happen, and returns what it hit.
        ends: Whether the fault ends the run.
        statuses: Exit statuses that ranks may have, besides 0 if the run is complete.
        unready: Further statuses if the fault comes before the first step.
        saves: Whether ranks leave a checkpoint of the last step, if the fault comes after the first one.
    """

    act: "Callable[[Start, Progress, Disk, Fault], str]"
    ends: bool
    statuses: AbstractSet[int]
    unready: AbstractSet[int] = field(default_factory=set)
    saves: bool = False


def act(start: Start, progress: Progress, disk: Disk, fault: Fault) -> str:
    """Let a fault happen, waiting for the run to end if it does. Returns a description of what was hit."""
    return KINDS[fault.kind].act(start, progress, disk, fault)


def _send(number: signal.Signals, *processes: int) -> None:
    for process in processes:
        if process:
            with suppress(ProcessLookupError):
                os.kill(process, number)


def _victim(start: Start, fault: Fault) -> tuple[int, int]:
    """Return one rank, and its process, 0 if no rank is running."""
    ranks = list(start.ranks().items())
    if not ranks:
        return 0, 0
    return ranks[int(fault.place * len(ranks))]


def _end(start: Start, progress: Progress, besides: int = 0) -> str:
    """Wait until a run that has lost a rank ends. Before its ranks have met, only their launcher can end it."""
    if not progress.met(start) and (besides or isinstance(start, ForkedStart)):
        start.kill()
        return "; the ranks had not met, or have ended"
    start.wait_for_end(besides)
    start.kill()
    return ""


def _kill_a_rank(start: Start, progress: Progress, disk: Disk, fault: Fault) -> str:
    rank, process = _victim(start, fault)
    _send(signal.SIGKILL, process)
    return f"rank {rank}" + _end(start, progress)


def _kill_all(start: Start, progress: Progress, disk: Disk, fault: Fault) -> str:
    start.kill()
    return "all processes"


def _kill_the_launcher(start: Start, progress: Progress, disk: Disk, fault: Fault) -> str:
    launchers = start.launchers() or [0]
    victim = launchers[int(fault.place * len(launchers))]
    _send(signal.SIGKILL, victim)
    if not progress.met(start):  # A rank just started does not look yet.
        start.kill()
        return f"process {victim}; the ranks had not met, or have ended"
    start.wait_for_end()
    return f"process {victim}"


def _stop_a_rank(start: Start, progress: Progress, disk: Disk, fault: Fault) -> str:
    """Stop a rank, as if its host were lost. The launcher kills it in the end."""
    rank, process = _victim(start, fault)
    _send(signal.SIGSTOP, process)
    return f"rank {rank}" + _end(start, progress, process)


def _pause(fault: Fault, processes: list[int]) -> str:
    seconds = 0.1 + 3.9 * fault.amount
    _send(signal.SIGSTOP, *processes)
    time.sleep(seconds)
    _send(signal.SIGCONT, *processes)
    return f" for {seconds:.1f} s"


def _pause_a_rank(start: Start, progress: Progress, disk: Disk, fault: Fault) -> str:
    rank, process = _victim(start, fault)
    return f"rank {rank}" + _pause(fault, [process])


def _pause_all(start: Start, progress: Progress, disk: Disk, fault: Fault) -> str:
    return "all processes" + _pause(fault, [process.pid for process in start.processes()])


def _signal(start: Start, progress: Progress, disk: Disk, fault: Fault) -> str:
    """Send a signal to all ranks or to one of them. `deepspeed` passes on the signals it handles."""
    number = SIGNALS[int(fault.amount * len(SIGNALS))]
    rank, process = _victim(start, fault)
    if not isinstance(start, ForkedStart) and number in (signal.SIGTERM, signal.SIGINT):
        _send(number, start.group)
        where = "deepspeed"
    elif fault.place < 0.5:
        _send(number, *start.ranks().values())
        where = "all ranks"
    else:
        _send(number, process)
        where = f"rank {rank}"
    return f"{number.name} to {where}" + _end(start, progress)


def _signal_then_kill(start: Start, progress: Progress, disk: Disk, fault: Fault) -> str:
    """Stop and then kill a run, like a scheduler that does not wait for the last checkpoint."""
    seconds = fault.amount * 0.5
    _send(signal.SIGTERM, *start.ranks().values())
    time.sleep(seconds)
    start.kill()
    return f"SIGTERM to all ranks, SIGKILL {seconds:.2f} s later"


def _full_disk(start: Start, progress: Progress, disk: Disk, fault: Fault) -> str:
    seconds = 0.2 + 3.8 * fault.amount
    with disk.full(start.ranks().values()):
        time.sleep(seconds)
    return f"{disk.name}, for {seconds:.1f} s"


def _full_disk_then_kill(start: Start, progress: Progress, disk: Disk, fault: Fault) -> str:
    seconds = fault.amount * 2.0
    with disk.full(start.ranks().values()):
        time.sleep(seconds)
        start.kill()
    return f"{disk.name}, SIGKILL after {seconds:.1f} s"


KINDS: dict[str, Kind] = {
    "kill a rank": Kind(_kill_a_rank, True, {KILLED, ExitStatus.DIED}),
    "kill all": Kind(_kill_all, True, {KILLED}),
    "kill the launcher": Kind(_kill_the_launcher, True, set(), saves=True),
    "stop a rank": Kind(_stop_a_rank, True, {KILLED, ExitStatus.DIED}),
    "pause a rank": Kind(_pause_a_rank, False, set()),
    "pause all": Kind(_pause_all, False, set()),
    "signal": Kind(_signal, True, STOPPED, UNREADY, saves=True),
    "signal, then kill": Kind(_signal_then_kill, True, {*STOPPED, KILLED}, UNREADY),
    "full disk": Kind(_full_disk, False, UNWRITTEN),
    "full disk, then kill": Kind(_full_disk_then_kill, True, {*UNWRITTEN, KILLED}),
}

"""Progress of an unfinished preparation, read from its folder by any process that can access it."""

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from megatape.data.document_entries import INDEX_FILE
from megatape.data.prepare.progress import UnitPass
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.shared_folder.folder_leases import (
    ASSEMBLY,
    COLLECTION,
    COMPARISON,
    DIVISION,
    NEAR_DECISION,
    PLANNING,
    REFERENCE,
)
from megatape.data.prepare.shared_folder.plan import Plan
from megatape.data.prepare.shared_folder.unit_lease import DEFAULT_TIMEOUTS
from megatape.errors import MissingPath, UserError, path_errors
from megatape.reliability.lease.holder import read_holder
from megatape.utils.files.files import file_system_time

# Seconds over which the rate is measured.
WINDOW = 600.0
# Lease without a number -> its work.
OTHER_WORK = {PLANNING: "the plan and the tokenizer", ASSEMBLY: "assembling the result"}


@dataclass(frozen=True)
class PassStatus:
    """Progress of a pass over the units.

    Attributes:
        unit_pass: The pass.
        num_done: Finished units.
        num_units: Units in total.
        done_bytes: Input size of finished units; 0 if unknown.
        total_bytes: Input size of all units; 0 if unknown.
        bytes_per_second: Rate by the units finished within WINDOW; 0 before the second one.
    """

    unit_pass: UnitPass
    num_done: int
    num_units: int
    done_bytes: int
    total_bytes: int
    bytes_per_second: float

    @property
    def seconds_left(self) -> float | None:
        """Remaining seconds at this rate; None if the rate is unknown."""
        if self.num_done == self.num_units:
            return 0.0
        if not self.bytes_per_second:
            return None
        return (self.total_bytes - self.done_bytes) / self.bytes_per_second


@dataclass(frozen=True)
class LeaseStatus:
    """Lease held by a process.

    Attributes:
        work: Leased work, such as "unit 12 (c4/00012.json.gz)".
        holder: Process, host and start of the lease; "an unknown process" while the process begins.
        seconds_silent: Seconds since the last heartbeat.
        has_ended: Whether the process has ended; None if this machine cannot tell.
    """

    work: str
    holder: str
    seconds_silent: float
    has_ended: bool | None


@dataclass(frozen=True)
class PreparationStatus:
    """Progress of an unfinished preparation.

    Attributes:
        folder: Folder of the preparation.
        passes: The write pass, after the first pass if documents are compared across units.
        leases: Leases in order.
    """

    folder: Path
    passes: list[PassStatus]
    leases: list[LeaseStatus]


@path_errors()
def preparation_status(output: Path) -> PreparationStatus:
    """Read the progress of a preparation.

    Args:
        output: Data directory that the preparation will write.

    Raises:
        MissingPath: Nothing is being prepared there.
        UserError: The folder's plan is corrupted, or the data directory is complete.
    """
    partial = PartialFolder(output, DEFAULT_TIMEOUTS)
    if (output / INDEX_FILE).is_file():
        raise UserError(f"{output} is complete: `megatape data report {output}` shows it")
    if not partial.path.is_dir():
        raise MissingPath(f"{partial.path}: not found, so nothing is being prepared there: check the path")
    plan = partial.plan()
    now = _time_of(partial.path)
    passes: list[PassStatus] = []
    if plan is not None:
        passes = _passes(partial, plan, now)
    return PreparationStatus(partial.path, passes, _leases(partial, plan, now))


def _passes(partial: PartialFolder, plan: Plan, now: float) -> list[PassStatus]:
    finished = {number: partial.unit_folder(number) for number in partial.finished(len(plan.units))}
    first_passes = {number: partial.first_pass(number) for number in partial.first_passes()}
    write_pass = _pass(UnitPass.WRITE, plan, finished, now)
    if not plan.compares_units:
        return [write_pass]
    return [_pass(UnitPass.FIRST, plan, first_passes | finished, now), write_pass]


def _pass(unit_pass: UnitPass, plan: Plan, done: dict[int, Path], now: float) -> PassStatus:
    """Return the status of a pass. `done`: finished unit -> result folder."""
    times: dict[int, float] = {}
    for number, folder in done.items():
        changed = _changed(folder)
        if changed is not None:
            times[number] = changed
    return PassStatus(
        unit_pass=unit_pass,
        num_done=len(done),
        num_units=len(plan.units),
        done_bytes=sum(plan.units[number].num_bytes for number in done),
        total_bytes=sum(unit.num_bytes for unit in plan.units),
        bytes_per_second=_rate(plan, times, now),
    )


def _rate(plan: Plan, times: dict[int, float], now: float) -> float:
    """Return bytes per second by recently finished units. `times`: finished unit -> finishing time."""
    recent = [number for number, changed in times.items() if now - changed < WINDOW]
    if not recent:
        return 0.0
    # If a unit was finished before the window, the others took the whole window. Otherwise the time counts from the end of the
    # first unit, because its own duration is unknown.
    start = now - WINDOW
    if len(recent) == len(times):
        first = min(times, key=times.__getitem__)
        start = times[first]
        recent.remove(first)
    recent_bytes = sum(plan.units[number].num_bytes for number in recent)
    return recent_bytes / max(now - start, 1.0)


def _leases(partial: PartialFolder, plan: Plan | None, now: float) -> list[LeaseStatus]:
    statuses = []
    for name in sorted(partial.leases.leased()):
        path = partial.leases.path_of(name)
        try:
            content = path.read_bytes()
            last_heartbeat = path.stat().st_mtime
        except FileNotFoundError:
            # The lease was released just now.
            continue
        holder = read_holder(content)
        description = "an unknown process"
        has_ended = None
        if holder is not None:
            description = str(holder)
            has_ended = holder.is_dead()
        seconds_silent = max(0.0, now - last_heartbeat)
        statuses.append(LeaseStatus(_work(name, plan), description, seconds_silent, has_ended))
    return statuses


def _work(name: str, plan: Plan | None) -> str:
    """Describe the work of a lease by its name. The plan is None before it is stored."""
    number, _, suffix = name.partition(".")
    if not number.isdigit():
        return OTHER_WORK.get(name, name)
    if suffix == REFERENCE:
        return f"reading documents of other data directories, part {int(number) + 1}"
    if suffix == DIVISION:
        return "dividing the documents' hashes into ranges"
    if suffix == NEAR_DECISION:
        return "deciding which near duplicates to drop"
    if suffix == COLLECTION:
        return f"collecting the duplicates of all ranges, part {int(number) + 1}"
    if suffix == COMPARISON:
        return f"comparing documents, part {int(number) + 1}"
    if plan is None or int(number) >= len(plan.units):
        return f"unit {int(number)}"
    return f"unit {int(number)} ({plan.units[int(number)]})"


def _changed(folder: Path) -> float | None:
    # The result of a first pass is removed when its unit is finished.
    with suppress(OSError):
        return folder.stat().st_mtime
    return None


def _time_of(folder: Path) -> float:
    """Return the file system's time, or this machine's time if the folder cannot be written."""
    with suppress(OSError):
        return file_system_time(folder)
    return time.time()

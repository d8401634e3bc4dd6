"""Writes the time of a run as text."""

from typing import NamedTuple

from megatape.reliability.goodput.parts import RESTART_PARTS, TimePart
from megatape.reliability.goodput.run_costs import run_costs
from megatape.reliability.goodput.run_time import RunTime
from megatape.utils.text.tables import columns
from megatape.utils.text.units import format_duration, plural


class PartRow(NamedTuple):
    """Row of a table of parts.

    Attributes:
        label: Description of the part.
        seconds: Seconds, with one decimal.
        share: Share of the total, in percent.
    """

    label: str
    seconds: str
    share: str


def format_goodput(run_time: RunTime) -> str:
    """Return the goodput in percent, empty if no time has passed."""
    goodput = run_time.parts.goodput
    if goodput is None:
        return ""
    return f"{goodput:.1%}"


def summary(run_time: RunTime) -> str:
    """Describe the total time, starts and rollbacks."""
    counts = [plural(run_time.num_starts, "start")]
    if run_time.num_rollbacks:
        counts.append(plural(run_time.num_rollbacks, "rollback"))
    counts.append(plural(run_time.num_saves, "checkpoint"))
    return f"{format_duration(run_time.parts.total)} since the first start, {', '.join(counts)}"


def part_rows(run_time: RunTime) -> list[PartRow]:
    """Return a row for each part that is not zero, and always for new steps and the remainder."""
    parts = run_time.parts
    total = parts.total
    rows = []
    for part, seconds in parts.seconds.items():
        is_shown = part in (TimePart.NEW_STEPS, TimePart.OTHER) or abs(seconds) >= 0.05
        if is_shown and total > 0:
            rows.append(PartRow(part.label, f"{seconds:,.1f}", f"{seconds / total:.1%}"))
    return rows


def time_report(run_time: RunTime) -> list[str]:
    """Return the lines of `megatape ledger --time`: goodput, parts, and costs of steps, saves and restarts."""
    lines = [f"time:      {summary(run_time)}", f"goodput:   {format_goodput(run_time)}", ""]
    rows = [*part_rows(run_time), PartRow("all", f"{run_time.parts.total:,.1f}", "100.0%")]
    lines += columns(rows, ("part", "seconds", "share"), ("left", "right", "right")).splitlines()
    costs = run_costs(run_time)
    shown = {
        "a kept step, mean": costs.step_seconds,
        "a save, mean": costs.save_seconds,
        "a failure, to the next first step, median": costs.restart_seconds,
    }
    known = [(label, f"{seconds:,.3f}") for label, seconds in shown.items() if seconds is not None]
    if known:
        lines += ["", *columns(known, ("cost", "seconds"), ("left", "right")).splitlines()]
    lines += _restart_lines(run_time)
    if not all(process.has_clock for process in run_time.processes):
        lines += ["", "an earlier version made some of the starts: its time for starting and evaluations counts as other"]
    return lines


def _restart_lines(run_time: RunTime) -> list[str]:
    """Return a table of the mean seconds of a restart by part, empty without restarts."""
    restarts = [process.parts for process in run_time.processes[1:] if process.has_clock]
    if not restarts:
        return []
    rows = []
    for part in RESTART_PARTS:
        seconds = sum(parts[part] for parts in restarts) / len(restarts)
        rows.append((part.label, f"{seconds:.2f}"))
    header = (f"mean of {plural(len(restarts), 'restart')}", "seconds")
    return ["", *columns(rows, header, ("left", "right")).splitlines()]

"""Preflight results of all ranks: what to fix, and the table that rank 0 prints."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from megatape.distributed.rank_differences import describe_ranks, differing_values
from megatape.tools.cluster.preflight.bandwidth import Rate
from megatape.utils.tables import columns
from megatape.utils.units import format_bytes

MAX_CLOCK_OFFSET = 1.0  # seconds
MIN_FREE_BYTES = 5 * 2**30  # in the run's folder

# Values that must be equal on all ranks -> remedy if they differ.
REMEDIES = {
    "versions of Python, torch or DeepSpeed": "install the same environment on all hosts (constraints.txt)",
    "versions of megatape": "copy the same code to all hosts, or keep it in a shared folder",
    "configurations": "give all ranks the same --config and --set",
    "devices": "the slowest sets the pace; use GPUs of one type, with one rank on each",
}


@dataclass
class RankReport:
    """Preflight results of one rank.

    Attributes:
        rank: Number of the rank.
        host: Name of its host, "" if the rank did not answer.
        versions: Versions of Python, torch and DeepSpeed.
        code: Hash of the package's source.
        config: Hash of the configuration.
        device: Name of its GPU, or "cpu".
        interface: Network interface, with its address.
        clock: Seconds ahead of rank 0. None if the ranks could not exchange data.
        free: Free bytes in the run's folder. None if the ranks could not exchange data, or if they do not share the folder.
        faults: Errors of this rank.
    """

    rank: int
    host: str = ""
    versions: str = ""
    code: str = ""
    config: str = ""
    device: str = ""
    interface: str = ""
    clock: float | None = None
    free: int | None = None
    faults: list[str] = field(default_factory=list)

    @contextmanager
    def collecting(self, *kinds: type[Exception], context: str = "") -> Iterator[None]:
        """Add an error of the block to the faults, instead of raising it.

        Args:
            kinds: Types of errors to collect.
            context: Text in front of the error's.
        """
        try:
            yield
        except kinds as error:
            self.faults.append(f"{context}{error}")

    def comparable_values(self) -> dict[str, str]:
        """Return the values that must be equal on all ranks, empty if the rank did not answer."""
        if not self.host:
            return {}
        return {
            "versions of Python, torch or DeepSpeed": self.versions,
            "versions of megatape": self.code,
            "configurations": self.config,
            "devices": self.device,
        }


def find_problems(reports: Sequence[RankReport]) -> list[str]:
    """Return the differences between ranks and the errors of single ranks, each with a remedy."""
    problems = []
    hosts = [report.host for report in reports]
    differences = differing_values(hosts, [report.comparable_values() for report in reports])
    for name, difference in differences.items():
        problems.append(f"{name} differ: {difference}: {REMEDIES[name]}")

    late = []
    for report in reports:
        if report.clock is not None and abs(report.clock) > MAX_CLOCK_OFFSET:
            late.append(f"{report.host} {report.clock:+.1f} s")
    if late:
        clocks = ", ".join(late)
        problems.append(f"clocks differ from rank 0's ({clocks}): file times and logs will be misleading; start NTP or chrony")

    known_free = [report.free for report in reports if report.free is not None]
    if known_free and min(known_free) < MIN_FREE_BYTES:
        problems.append(f"only {format_bytes(min(known_free))} free in run.directory: free space for checkpoints")

    ranks_by_fault: dict[str, list[int]] = {}
    for rank, report in enumerate(reports):
        for fault in dict.fromkeys(report.faults):
            ranks_by_fault.setdefault(fault, []).append(rank)
    for fault, ranks in ranks_by_fault.items():
        problems.append(f"{describe_ranks(ranks, hosts)}: {fault}")
    return problems


def format_report(reports: Sequence[RankReport], rates: Sequence[Rate], problems: Sequence[str]) -> str:
    """Return the text that rank 0 prints: a row per rank, a row per collective, and what to fix."""
    rows = [_row(report) for report in reports]
    lines = [columns([list(row.values()) for row in rows], list(rows[0]))]
    if rates:
        lines.append(columns([_rate_row(rate) for rate in rates]))
    if problems:
        lines.append("to fix:")
        lines += [f"  {problem}" for problem in problems]
    else:
        lines.append("all checks passed")
    return "\n".join(lines)


def _row(report: RankReport) -> dict[str, str]:
    """Return the cells of a rank by column."""
    clock = "not compared"
    if report.clock is not None:
        clock = f"{1000 * report.clock:+.0f} ms"
    return {
        "rank": str(report.rank),
        "host": report.host,
        "python/torch/deepspeed": report.versions,
        "code": report.code,
        "config": report.config,
        "device": report.device,
        "interface": report.interface,
        "clock": clock,
        "run.directory": _describe_folder(report),
    }


def _describe_folder(report: RankReport) -> str:
    """Describe what a rank found out about the run's folder."""
    could_exchange_data = report.clock is not None
    if not could_exchange_data:
        return "not checked"
    if report.free is None:
        return "NOT SHARED"
    return f"shared, {format_bytes(report.free)} free"


def _rate_row(rate: Rate) -> tuple[str, str, str]:
    """Return the cells of a collective: name, result, speed."""
    result = "correct" if rate.correct else "WRONG"
    speed = "one rank moves nothing"
    if rate.bandwidth:
        speed = f"{format_bytes(rate.bandwidth)}/s a rank"
    return rate.name, result, speed

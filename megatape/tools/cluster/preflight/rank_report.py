"""Preflight results of all ranks: reasons why a run would fail, and the table that rank 0 prints."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from megatape.distributed.values.rank_differences import describe_ranks, differing_values
from megatape.tools.cluster.preflight.bandwidth import Rate
from megatape.utils.text.tables import columns
from megatape.utils.text.units import format_bytes

# Maximum seconds by which a clock may differ from rank 0's.
MAX_CLOCK_OFFSET = 1.0
# Minimum free space in the run directory.
MIN_FREE_BYTES = 5 * 2**30
COLUMNS = ("rank", "host", "python/torch/deepspeed", "code", "config", "device", "interface", "clock", "run.directory")


@dataclass
class RankReport:
    """Preflight results of one rank.

    Attributes:
        rank: Rank.
        host: Host name, "" if the rank did not answer.
        versions: Versions of Python, torch and DeepSpeed.
        code: Hash of the package's source.
        config: Hash of the configuration.
        device: GPU name, or "cpu".
        interface: Network interface, with its address.
        clock: Seconds ahead of rank 0's clock. None if the ranks could not exchange data.
        free: Free bytes in the run directory. None if the ranks could not exchange data or do not share the directory.
        faults: Errors found by this rank.
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

    @property
    def has_answered(self) -> bool:
        """Whether the rank sent this report."""
        return bool(self.host)

    @contextmanager
    def collecting(self, *kinds: type[Exception], context: str = "") -> Iterator[None]:
        """Add errors raised in the block to the faults.

        Args:
            kinds: Types of errors to collect.
            context: Text in front of the error message.
        """
        try:
            yield
        except kinds as error:
            self.faults.append(f"{context}{error}")


@dataclass(frozen=True)
class SharedValue:
    """Value that must be equal on all ranks.

    Attributes:
        name: Name of the value, in the plural.
        read: Function that returns the value of a rank.
        remedy: Advice if the values differ.
    """

    name: str
    read: Callable[[RankReport], str]
    remedy: str


SHARED_VALUES = (
    SharedValue(
        "versions of Python, torch or DeepSpeed",
        lambda report: report.versions,
        "install the same environment on all hosts (constraints.txt)",
    ),
    SharedValue(
        "versions of megatape",
        lambda report: report.code,
        "copy the same code to all hosts, or keep it in a shared folder",
    ),
    SharedValue(
        "configurations",
        lambda report: report.config,
        "give all ranks the same --config and --set",
    ),
    SharedValue(
        "devices",
        lambda report: report.device,
        "the slowest sets the pace; use GPUs of one type, with one rank on each",
    ),
)


def reasons_to_fix(reports: Sequence[RankReport]) -> list[str]:
    """Return the reasons why a run would fail: differences between ranks, and errors of single ranks, each with a remedy."""
    return [
        *_differences(reports),
        *_clock_offsets(reports),
        *_full_disks(reports),
        *_faults(reports),
    ]


def _differences(reports: Sequence[RankReport]) -> Iterator[str]:
    """Yield the shared values that differ between ranks."""
    hosts = [report.host for report in reports]
    values_of_ranks: list[dict[str, str]] = []
    for report in reports:
        values: dict[str, str] = {}
        if report.has_answered:
            values = {shared.name: shared.read(report) for shared in SHARED_VALUES}
        values_of_ranks.append(values)
    differences = differing_values(hosts, values_of_ranks)
    for shared in SHARED_VALUES:
        if shared.name in differences:
            yield f"{shared.name} differ: {differences[shared.name]}: {shared.remedy}"


def _clock_offsets(reports: Sequence[RankReport]) -> Iterator[str]:
    """Yield a reason if a clock differs from rank 0's."""
    offsets = []
    for report in reports:
        if report.clock is not None and abs(report.clock) > MAX_CLOCK_OFFSET:
            offsets.append(f"{report.host} {report.clock:+.1f} s")
    if offsets:
        clocks = ", ".join(offsets)
        yield f"clocks differ from rank 0's ({clocks}): file times and logs will be misleading; start NTP or chrony"


def _full_disks(reports: Sequence[RankReport]) -> Iterator[str]:
    """Yield a reason if the run directory has little free space."""
    known_free = [report.free for report in reports if report.free is not None]
    if known_free and min(known_free) < MIN_FREE_BYTES:
        yield f"only {format_bytes(min(known_free))} free in run.directory: free space for checkpoints"


def _faults(reports: Sequence[RankReport]) -> Iterator[str]:
    """Yield each error once, with the ranks that found it."""
    hosts = [report.host for report in reports]
    ranks_by_fault: dict[str, list[int]] = {}
    for rank, report in enumerate(reports):
        for fault in dict.fromkeys(report.faults):
            ranks_by_fault.setdefault(fault, []).append(rank)
    for fault, ranks in ranks_by_fault.items():
        yield f"{describe_ranks(ranks, hosts)}: {fault}"


def format_report(reports: Sequence[RankReport], rates: Sequence[Rate], reasons: Sequence[str]) -> str:
    """Return the text that rank 0 prints: a row per rank, a row per collective, and the reasons why a run would fail."""
    lines = [columns([_row(report) for report in reports], COLUMNS)]
    if rates:
        lines.append(columns([_rate_row(rate) for rate in rates]))
    if reasons:
        lines.append("to fix:")
        lines += [f"  {reason}" for reason in reasons]
    else:
        lines.append("all checks passed")
    return "\n".join(lines)


def _row(report: RankReport) -> list[str]:
    """Return the cells of a rank, one per entry of COLUMNS."""
    clock = "not compared"
    if report.clock is not None:
        clock = f"{1000 * report.clock:+.0f} ms"
    return [
        str(report.rank),
        report.host,
        report.versions,
        report.code,
        report.config,
        report.device,
        report.interface,
        clock,
        _describe_folder(report),
    ]


def _describe_folder(report: RankReport) -> str:
    """Return the cell about the run directory."""
    has_exchanged_data = report.clock is not None
    if not has_exchanged_data:
        return "not checked"
    if report.free is None:
        return "NOT SHARED"
    return f"shared, {format_bytes(report.free)} free"


def _rate_row(rate: Rate) -> tuple[str, str, str]:
    """Return the cells of a collective: name, result and speed."""
    result = "WRONG"
    if rate.correct:
        result = "correct"
    speed = "one rank moves nothing"
    if rate.bandwidth:
        speed = f"{format_bytes(rate.bandwidth)}/s per rank"
    return rate.name, result, speed

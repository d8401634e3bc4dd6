"""Shows the progress of an unfinished preparation."""

from pathlib import Path
from typing import TYPE_CHECKING

from megatape.utils.text.units import format_bytes, format_duration
from megatape.utils.values.options import CommandOptions, option

if TYPE_CHECKING:
    from megatape.data.prepare.status import PassStatus

EXAMPLE = "megatape data status runs/data/c4"


class Options(CommandOptions):
    """An unfinished preparation.

    Attributes:
        output: data directory being prepared
    """

    output: Path = option(positional=True, metavar="FOLDER")


def run(options: Options) -> None:
    """Print the progress of the preparation."""
    from megatape.data.prepare.status import preparation_status
    from megatape.data.printable import printable

    status = preparation_status(options.output)
    print(f"unfinished preparation {status.folder}")
    if not status.passes:
        print("its plan is not stored yet: a process is still listing the source or training a tokenizer")
    for pass_progress in status.passes:
        print(_describe_pass(pass_progress))
    for lease in status.leases:
        line = f"{printable(lease.work)}: {printable(lease.holder)}, last heartbeat {format_duration(lease.seconds_silent)} ago"
        if lease.has_ended:
            line += ", but the process has ended: another process takes over its work"
        print(line)
    if not status.leases:
        print("no process is running: run the same `megatape prepare` command again to resume")


def _describe_pass(progress: "PassStatus") -> str:
    """Return the line about one pass over the units."""
    line = f"{progress.unit_pass.value}: {progress.num_done:,} of {progress.num_units:,} units"
    if progress.total_bytes:
        line += f", {format_bytes(progress.done_bytes)} of {format_bytes(progress.total_bytes)}"
    if progress.bytes_per_second:
        line += f", {format_bytes(progress.bytes_per_second)}/s"
    if progress.seconds_left:
        line += f", {format_duration(progress.seconds_left)} left at this rate"
    return line

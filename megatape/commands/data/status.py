"""megatape data status: `megatape data status runs/data/c4`."""

from pathlib import Path

from megatape.utils.options import CommandOptions, option
from megatape.utils.units import format_bytes, format_duration


class Options(CommandOptions):
    """An unfinished preparation.

    Attributes:
        output: data directory being prepared
    """

    output: Path = option(positional=True, metavar="FOLDER")


def run(options: Options) -> None:
    """Print its progress."""
    from megatape.data.prepare.status import preparation_status
    from megatape.data.printable import printable

    status = preparation_status(options.output)
    print(f"unfinished preparation {status.folder}")
    if not status.passes:
        print("its plan is not stored yet: a process is still listing the source or training a tokenizer")
    for of_pass in status.passes:
        line = f"{of_pass.name}: {of_pass.num_done:,} of {of_pass.num_units:,} units"
        if of_pass.total_bytes:
            line += f", {format_bytes(of_pass.done_bytes)} of {format_bytes(of_pass.total_bytes)}"
        if of_pass.bytes_per_second:
            line += f", {format_bytes(of_pass.bytes_per_second)}/s"
        if of_pass.seconds_left:
            line += f", {format_duration(of_pass.seconds_left)} left at this rate"
        print(line)
    for lease in status.leases:
        line = f"{printable(lease.work)}: {printable(lease.holder)}, last heartbeat {format_duration(lease.seconds_silent)} ago"
        if lease.has_ended:
            line += ", but the process has ended: another one takes over its work"
        print(line)
    if not status.leases:
        print("no process is running: run the same command again to resume")

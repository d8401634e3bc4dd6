"""megatape monitor: `megatape monitor runs/tape_155m runs/rope_155m`."""

import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from megatape.commands.cli.shared_options import ImportOptions
from megatape.errors import UserError
from megatape.reliability.signals import handled
from megatape.utils.options import Count, option

# Maximum share of the time spent reading the runs.
BUSY_SHARE = 0.1


class Options(ImportOptions):
    """Runs to look at.

    Attributes:
        runs: folder of a run, run.directory of its configuration
        once: print the view once, for which no terminal is needed
        interval: seconds between two looks at the runs
    """

    runs: tuple[Path, ...] = option(positional=True, metavar="RUN")
    once: bool = False
    interval: Count = option(2, metavar="SECONDS")


def run(options: Options) -> None:
    """Show the runs until Ctrl-C, then leave the terminal as it was."""
    if not (options.once or sys.stdout.isatty()):
        raise UserError("the output is no terminal: add `once`")
    from rich.console import Console
    from rich.live import Live

    from megatape.lab.report.monitor import Monitor

    console = Console()
    monitor = Monitor(options.runs)
    if options.once:
        console.print(monitor)
        return
    # SIGTERM and SIGHUP raise KeyboardInterrupt like Ctrl-C, so `Live` restores the terminal.
    interrupting = handled(signal.default_int_handler, signal.SIGTERM, signal.SIGHUP)
    with (
        suppress(KeyboardInterrupt),
        interrupting,
        Live(monitor, console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            began = time.monotonic()
            monitor.look()
            live.refresh()
            busy = time.monotonic() - began
            time.sleep(max(options.interval, busy / BUSY_SHARE))

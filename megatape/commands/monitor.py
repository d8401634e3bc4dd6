"""Shows runs live in a terminal."""

import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from megatape.commands.options.shared_options import ImportOptions
from megatape.errors import UserError, flag
from megatape.reliability.signals import handled
from megatape.utils.values.options import Count, option

EXAMPLE = "megatape monitor runs/tape_155m runs/rope_155m"

# Maximum share of time spent reading the runs.
MAX_BUSY_SHARE = 0.1


class Options(ImportOptions):
    """Runs to watch.

    Attributes:
        runs: run directory, run.directory of the configuration
        once: print the view once and exit; works without a terminal
        interval: seconds between updates
    """

    runs: tuple[Path, ...] = option(positional=True, metavar="RUN")
    once: bool = False
    interval: Count = option(2, metavar="SECONDS")


def run(options: Options) -> None:
    """Show the runs until Ctrl-C, then leave the terminal as it was."""
    if not (options.once or sys.stdout.isatty()):
        raise UserError(f"the output is not a terminal: add {flag('once')}")
    from rich.console import Console
    from rich.live import Live

    from megatape.lab.report.monitor import Monitor

    console = Console()
    monitor = Monitor(options.runs)
    if options.once:
        console.print(monitor)
        return
    # Raise KeyboardInterrupt on SIGTERM and SIGHUP as on Ctrl-C, so that `Live` restores the terminal.
    interrupting = handled(signal.default_int_handler, signal.SIGTERM, signal.SIGHUP)
    with (
        suppress(KeyboardInterrupt),
        interrupting,
        Live(monitor, console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            started = time.monotonic()
            monitor.update()
            live.refresh()
            busy = time.monotonic() - started
            time.sleep(max(options.interval, busy / MAX_BUSY_SHARE))

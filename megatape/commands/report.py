"""Writes a page about runs."""

import sys
from collections.abc import Iterable
from pathlib import Path

from megatape.commands.options.shared_options import ImportOptions
from megatape.utils.values.options import Count, option

EXAMPLE = "megatape report runs/tape_155m runs/rope_155m --output report"


class Options(ImportOptions):
    """Runs and evaluations, and the folder of their page.

    Attributes:
        runs: run directory, run.directory of the configuration
        output: new folder for index.html; with --watch, it may contain an earlier page
        watch: update the page while runs are training, checking them every SECONDS (10 if not
            given), until all have finished or Ctrl-C; an open page reloads itself
        evaluations: folders with results of `megatape evaluate`, in addition to those inside the
            run directories
    """

    runs: tuple[Path, ...] = option(positional=True, metavar="RUN")
    output: Path = option(metavar="DIR")
    watch: Count | None = option(None, metavar="SECONDS", nargs="?", const="10")
    evaluations: tuple[Path, ...] = option((), metavar="DIR")


def run(options: Options) -> None:
    """Write the page. With `watch`, keep it up to date while the runs are training."""
    from megatape.lab.report.page import watch_report, write_report

    if options.watch is None:
        page, warnings = write_report(options.runs, options.evaluations, options.output)
        _print_warnings(warnings)
        print(f"wrote {page}", flush=True)
        return
    # Print the page and each warning once.
    printed: set[str] = set()
    for page, warnings in watch_report(options.runs, options.evaluations, options.output, options.watch):
        _print_warnings(warning for warning in warnings if warning not in printed)
        if str(page) not in printed:
            print(f"wrote {page}", flush=True)
        printed |= {*warnings, str(page)}
    print("stopped watching: all runs have finished, or Ctrl-C was pressed; open pages no longer reload")


def _print_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)

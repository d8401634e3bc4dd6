"""megatape report: `megatape report runs/tape_155m runs/rope_155m --output report`."""

import sys
from pathlib import Path

from megatape.commands.options import ImportOptions
from megatape.utils.options import Count, option


class Options(ImportOptions):
    """Runs and evaluations, and where their page is written.

    Attributes:
        runs: folder of a run, run.directory of its configuration
        output: new folder for index.html; with --watch also that of an earlier page
        watch: write the page again while runs train, looking at them every SECONDS (10 if not
            given), until all have finished or Ctrl-C; an open page reloads itself
        evaluations: folders with results of `megatape evaluate`, beside those below the runs
    """

    runs: tuple[Path, ...] = option(positional=True, metavar="RUN")
    output: Path = option(metavar="DIR")
    watch: Count | None = option(None, metavar="SECONDS", nargs="?", const="10")
    evaluations: tuple[Path, ...] = option((), metavar="DIR")


def run(options: Options) -> None:
    """Write the page, with `watch` again and again."""
    from megatape.lab.report.page import watch_report, write_report

    where = options.runs, options.evaluations, options.output
    printed: set[str] = set()  # with `watch` each warning is printed once
    for page, notes in [write_report(*where)] if options.watch is None else watch_report(*where, options.watch):
        for note in [note for note in notes if note not in printed]:
            print(f"warning: {note}", file=sys.stderr)
        if str(page) not in printed:
            print(f"wrote {page}", flush=True)
        printed |= {*notes, str(page)}
    if options.watch is not None:
        print("watched until all runs had finished, or until Ctrl-C: open pages reload no more")

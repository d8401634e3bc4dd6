"""megatape report: `megatape report runs/tape_155m runs/rope_155m --output report`."""

import sys
from pathlib import Path

from megatape.commands.options import ImportOptions
from megatape.options import option


class Options(ImportOptions):
    """Runs and evaluations, and where their page is written."""

    runs: tuple[Path, ...] = option("folder of a run, run.directory of its configuration", positional=True, metavar="RUN")
    output: Path = option("new folder for index.html", metavar="DIR")
    evaluations: tuple[Path, ...] = option(
        "folders with results of `megatape evaluate`, beside those below the runs", (), metavar="DIR"
    )


def run(options: Options) -> int:
    """Write the page."""
    from megatape.report.page import write_report

    page, notes = write_report(options.runs, options.evaluations, options.output)
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)
    print(f"wrote {page}")
    return 0

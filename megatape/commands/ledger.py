"""Verifies which samples a run trained on, or shows where its time went."""

from pathlib import Path

from megatape.commands.options.shared_options import ImportOptions
from megatape.errors import UserError, path_errors
from megatape.reliability.goodput.read import read_run_time
from megatape.reliability.goodput.table import time_report
from megatape.run_folder import RunFolder
from megatape.utils.values.options import option

EXAMPLE = "megatape ledger runs/tape_155m"


class Options(ImportOptions):
    """A run.

    Attributes:
        directory: run directory, run.directory of the configuration
        set: override one value of the run's configuration, such as data.path if the data has moved
            or its URL has a password (passwords are not recorded); repeatable
        time: show goodput instead, the share of time spent on steps that the run keeps, and where the
            rest went
    """

    directory: Path = option(positional=True, metavar="RUN")
    set: tuple[str, ...] = option((), metavar="SECTION.KEY=VALUE", repeatable=True)
    time: bool = False


def run(options: Options) -> None:
    """Print the samples that the run trained on, and verify them. With `time`, print where its time went."""
    if options.time:
        print("\n".join(_time_report(options.directory)))
        return
    from megatape.tools.ledger import prove

    for line in prove(options.directory, options.set):
        print(line)


@path_errors()
def _time_report(directory: Path) -> list[str]:
    folder = RunFolder(directory)
    run_time = read_run_time(folder)
    if not run_time.processes:
        raise UserError(f"{directory}: {folder.events.name} has no event: give run.directory of a started run")
    return time_report(run_time)

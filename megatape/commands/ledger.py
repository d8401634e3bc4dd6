"""Verifies which samples a run trained on."""

from pathlib import Path

from megatape.commands.cli.shared_options import ImportOptions
from megatape.utils.options import option

EXAMPLE = "megatape ledger runs/tape_155m"


class Options(ImportOptions):
    """A run.

    Attributes:
        directory: run directory, run.directory of the configuration
        set: override one value of the run's configuration, such as data.path if the data has moved
            or its URL has a password (passwords are not recorded); repeatable
    """

    directory: Path = option(positional=True, metavar="RUN")
    set: tuple[str, ...] = option((), metavar="SECTION.KEY=VALUE", repeatable=True)


def run(options: Options) -> None:
    """Print the samples that the run trained on, and verify them."""
    from megatape.tools.ledger import prove

    for line in prove(options.directory, options.set):
        print(line)

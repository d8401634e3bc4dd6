"""megatape ledger: `megatape ledger runs/tape_155m`."""

from pathlib import Path

from megatape.commands.cli.shared_options import ImportOptions
from megatape.utils.options import option


class Options(ImportOptions):
    """A run.

    Attributes:
        directory: folder of a run, run.directory of its configuration
        set: change of its configuration, such as data.path if the data has moved, or if its URL has a password (passwords are
            not recorded); may be repeated
    """

    directory: Path = option(positional=True, metavar="RUN")
    set: tuple[str, ...] = option((), metavar="SECTION.KEY=VALUE", repeatable=True)


def run(options: Options) -> None:
    """Print the proof."""
    from megatape.tools.ledger import prove

    for line in prove(options.directory, options.set):
        print(line)

"""Options of a command, with one field of each form."""

from pathlib import Path
from typing import Literal

from megatape.utils.values.options import CommandOptions, Count, Listed, option


class Options(CommandOptions):
    """One field of each form.

    Attributes:
        folder: a folder
        max_documents: at 100% at most
        steps: steps
        share: a share
        lengths: lengths
        files: files
        rule: rules
        mode: a mode
        dry_run: a number of documents, or none
        verbose: more
    """

    at_most_one = (("steps", "lengths"),)

    folder: Path = option(positional=True, metavar="FOLDER")
    max_documents: int | None = option(None, ge=1, metavar="N")
    steps: Count = 3
    share: float = 0.5
    lengths: Listed[Count] = option((8, 16), metavar="N,N")
    files: tuple[Path, ...] = ()
    rule: tuple[str, ...] = option((), repeatable=True)
    mode: Literal["fast", "slow"] = "fast"
    dry_run: Count | None = option(None, nargs="?", const="1000")
    verbose: bool = False
    typed: str = option("", hidden=True)

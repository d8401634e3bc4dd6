"""Options of a command, with one field of each form."""

from pathlib import Path
from typing import Literal

from megatape.options import CommandOptions, Count, Listed, option


class Options(CommandOptions):
    """One field of each form."""

    at_most_one = (("steps", "lengths"),)

    folder: Path = option("a folder", positional=True, metavar="FOLDER")
    max_documents: int | None = option("at 100% at most", None, ge=1, metavar="N")
    steps: Count = option("steps", 3)
    share: float = option("a share", 0.5)
    lengths: Listed[Count] = option("lengths", (8, 16), metavar="N,N")
    files: tuple[Path, ...] = option("files", ())
    rule: tuple[str, ...] = option("rules", (), repeatable=True)
    mode: Literal["fast", "slow"] = option("a mode", "fast")
    dry_run: Count | None = option("a number of documents, or none", None, nargs="?", const="1000")
    verbose: bool = option("more", False)
    typed: str = ""

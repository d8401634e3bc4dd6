"""Command line of this process."""

import shlex
import sys
from pathlib import Path


def typed_command() -> str:
    """Return the command line of this process, without the words of a launcher."""
    program, *words = sys.argv
    name = program
    if Path(program).name in ("megatape", "__main__.py"):
        name = "megatape"
    typed = [word for word in words if not word.startswith("--local_rank=")]
    return shlex.join([name, *typed])

"""`python -m megatape COMMAND ...`, and the script for launchers that start one by its path."""

import sys
from pathlib import Path

if (
    not __package__
):  # started by its path: Python looks for modules in this folder, and must do so in the one that has the package
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from megatape.commands.main import main

if __name__ == "__main__":
    sys.exit(main())

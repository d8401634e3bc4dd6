"""The program `megatape COMMAND ...`: as a script, as `python -m megatape`, and by this file's path, for launchers."""

import os
import sys

if not __package__:  # started by its path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from megatape.search_path import drop_start_folders

drop_start_folders()

from megatape.commands.main import main

if __name__ == "__main__":
    __spec__ = None  # Processes of multiprocessing then run this file, and find the package, however this process found it.
    sys.exit(main())

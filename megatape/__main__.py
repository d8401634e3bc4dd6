"""Program `megatape COMMAND ...`.

It runs as a script, as `python -m megatape`, or by this file's path (for launchers). The scripts in launch/ and data_prep/
import it. Before importing other modules, it takes the current directory and the script's folder off sys.path.
"""

import os
import sys

if not __package__:  # started by this file's path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from megatape.search_path import drop_start_folders

drop_start_folders()

from megatape.commands.cli.main import main

if __name__ == "__main__":
    # Without a spec, multiprocessing starts its processes from this file's path, so they always find the package.
    __spec__ = None
    sys.exit(main())

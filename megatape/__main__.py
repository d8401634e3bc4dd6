"""Program `megatape COMMAND ...`.

It runs as a script, as `python -m megatape`, or by this file's path (for launchers), and the scripts of launch/ and data_prep/
import it. It takes the current directory and the folder of the script off sys.path before other modules are imported.
"""

import os
import sys

if not __package__:  # this file was started by its path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from megatape.search_path import drop_start_folders

drop_start_folders()

from megatape.commands.cli.main import main

if __name__ == "__main__":
    # Without a spec, multiprocessing starts its processes from this file's path, so they always find the package.
    __spec__ = None
    sys.exit(main())

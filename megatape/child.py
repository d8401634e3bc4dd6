"""Program of child processes.

    python -P PATH/child.py [--import MODULE]... [MODULE [WORD ...]]

Imports the modules after --import, and calls `main` in MODULE with the words. Running this file by its path is enough to find
the package (utils/processes/python_process.py).
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from megatape.search_path import drop_start_folders

drop_start_folders()

from importlib import import_module

from megatape.imports import import_leading

if __name__ == "__main__":
    words = import_leading(sys.argv[1:])
    if words:
        program = import_module(words[0])
        sys.exit(program.main(words[1:]))

"""`megatape submit` from a clone: `python launch/slurm/submit.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the package of this clone, installed or not

from megatape.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["submit", *sys.argv[1:]]))

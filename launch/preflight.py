"""`megatape preflight` for a launcher: `deepspeed --hostfile FILE launch/preflight.py --config configs/tape_1b.json`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this clone, installed or not

from megatape.search_path import drop_start_folders

drop_start_folders()

from megatape.commands.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["preflight", *sys.argv[1:]]))

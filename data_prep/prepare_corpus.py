"""`megatape prepare corpus` from a clone: `python data_prep/prepare_corpus.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this clone, installed or not

from megatape.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["prepare", "corpus", *sys.argv[1:]]))

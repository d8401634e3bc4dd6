"""python -m tests.soak --minutes 30 --seed 1: disturb training for so long, and prove that it comes to the same."""

import argparse
import random
import sys
import tempfile
import traceback
from pathlib import Path

from tests.soak.launch import Failure
from tests.soak.soak import soak


def main() -> int:
    """Returns 0, or 1 after saying what was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="for which runs are disturbed; then the last one finishes")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of all that happens; by default a new one")
    parser.add_argument("--first", type=int, default=1, metavar="ROUND", help="leave out the rounds before")
    parser.add_argument("--output", type=Path, help="new folder for journal.jsonl and logs; a temporary one by default")
    args = parser.parse_args()
    output = args.output or Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        soak(args.minutes * 60, args.seed, output, args.first)
    except Failure as failure:
        print(failure, file=sys.stderr)
    except Exception:  # noqa: BLE001 (of the soak itself: shown in full)
        traceback.print_exc()
    else:
        return 0
    print(f"found with --seed {args.seed}; journal, logs and runs are in {output}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

"""python -m tests.soak --minutes 30 --seed 1: disturbs training at random, and compares it with undisturbed runs.

python -m tests.soak --failures 500 --every 15 --output DIR disturbs runs under a supervisor until so many faults have happened.
The same command continues an interrupted torture.
"""

import argparse
import random
import sys
import tempfile
import traceback
from pathlib import Path

from tests.soak.launch import Failure
from tests.soak.soak import soak
from tests.soak.torture import table, torture


def main() -> int:
    """Run the soak. Returns 0, or 1 after printing the failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="time in which runs are disturbed; then the last one finishes"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="seed of the schedule; random by default")
    parser.add_argument("--first", type=int, default=1, metavar="ROUND", help="skip the rounds before this one")
    parser.add_argument("--output", type=Path, help="new folder for journal.jsonl and logs; temporary by default")
    parser.add_argument("--failures", type=int, help="disturb runs under `megatape supervise` until so many faults")
    parser.add_argument("--every", type=float, default=15.0, help="mean seconds between these faults, without recoveries")
    args = parser.parse_args()
    output = args.output or Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        if args.failures:
            torture(args.failures, args.every, args.seed, output)
            print(table(output / "torture.jsonl"))
        else:
            soak(args.minutes * 60, args.seed, output, args.first)
    except Failure as failure:
        print(failure, file=sys.stderr)
    except Exception:  # noqa: BLE001 (an error in the soak itself is shown with its traceback)
        traceback.print_exc()
    else:
        return 0
    print(f"found with --seed {args.seed}; journal, logs and runs are in {output}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

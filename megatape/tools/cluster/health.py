"""Health check of a container: python -m megatape.tools.cluster.health; MEGATAPE_RUN is the run's folder."""

import os
import sys
from pathlib import Path

from megatape.run_folder import RunFolder
from megatape.utils.files import file_system_time

LONGEST_STEP = 600.0  # seconds without a new line in metrics.jsonl


def fault(run: Path) -> str:
    """What is wrong with a run, or "" if nothing is.

    The age of its last step is by the clock of its file system, which may differ from this host's. A run without metrics counts
    as unhealthy, which container engines ignore during the start period.
    """
    log = RunFolder(run).metrics
    if not log.exists():
        return f"{log}: not written yet"
    age = file_system_time(run) - log.stat().st_mtime  # seconds, negative after a clock was set back
    return f"{log}: no step for {LONGEST_STEP:.0f} s" if abs(age) > LONGEST_STEP else ""


def main() -> int:
    """Print what is wrong with the run, or `healthy`. Returns the exit status, 1 if something is wrong."""
    run = os.environ.get("MEGATAPE_RUN")
    found = fault(Path(run)) if run else ""
    sys.stdout.write(f"{found or 'healthy'}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

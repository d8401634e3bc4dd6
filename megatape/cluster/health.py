"""Whether a container is healthy: python -m megatape.cluster.health, with MEGATAPE_RUN naming the run's folder."""

import os
import sys
import time
from pathlib import Path

from megatape.run_folder import RunFolder

LONGEST_STEP = 600.0  # seconds without a new line in metrics.jsonl


def fault(run: Path | None, now: float) -> str:
    """What is wrong with a run, or nothing. A run that has no metrics yet is starting: that it takes too long is for the
    container's start period to say."""
    if run is None:
        return ""
    log = RunFolder(run).metrics
    if not log.exists():
        return f"{log}: not there yet"
    age = now - log.stat().st_mtime
    return f"{log}: no step for {age:.0f} s" if age > LONGEST_STEP else ""


def main() -> int:
    name = os.environ.get("MEGATAPE_RUN")
    found = fault(Path(name) if name else None, time.time())
    print(found or "healthy")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

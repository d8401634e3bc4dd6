"""Health check of a container: `python -m megatape.tools.cluster.health`.

MEGATAPE_RUN is the run directory. Without it, the check knows no run and always reports "healthy", because containers also run
commands that train nothing.
"""

import os
import sys
from pathlib import Path

from megatape.run_folder import RunFolder
from megatape.utils.files.files import file_system_time

# Maximum seconds without a new line in metrics.jsonl.
MAX_STEP_SECONDS = 600.0


def unhealthy_reason(run: Path) -> str | None:
    """Return the reason why a run is unhealthy, or None if it is healthy.

    The age of the last step is measured with the clock of the file system, which may differ from this host's clock. A run
    without metrics counts as unhealthy: container engines ignore that during their start period.

    Args:
        run: Run directory.
    """
    log = RunFolder(run).metrics
    try:
        if not log.exists():
            return f"{log}: not written yet"
        age = file_system_time(run) - log.stat().st_mtime
    except OSError as error:
        return f"{run}: its file system cannot be used: {error}"
    if age < -MAX_STEP_SECONDS:
        return f"{log}: the last step is {-age:.0f} s in the future: the clock of the file system was set back"
    if age > MAX_STEP_SECONDS:
        return f"{log}: no step for {age:.0f} s (limit: {MAX_STEP_SECONDS:.0f} s): read {RunFolder(run).events}"
    return None


def main() -> int:
    """Print why the run is unhealthy, or `healthy`. Returns the exit status, 1 for an unhealthy run."""
    run = os.environ.get("MEGATAPE_RUN")
    reason = None
    if run:
        reason = unhealthy_reason(Path(run))
    if reason is None:
        sys.stdout.write("healthy\n")
        return 0
    sys.stdout.write(f"{reason}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())

"""Finding processes of `megatape supervise --ranks`: running ranks, and standby processes."""

from contextlib import suppress
from pathlib import Path

import psutil

from megatape.reliability.standby import PIPE_VARIABLE

# Minimum processor seconds for importing torch and DeepSpeed
MIN_IMPORT_SECONDS = 1.0


def running_ranks(supervisor: int) -> list[psutil.Process]:
    """Return the running ranks in order."""
    return [process for process in _rank_processes(supervisor) if not _waits(process)]


def standby_processes(supervisor: int) -> list[psutil.Process]:
    """Return the standby processes that finished importing."""
    ready = []
    for process in _rank_processes(supervisor):
        with suppress(psutil.Error):
            has_imported = process.status() == psutil.STATUS_SLEEPING and process.cpu_times().user > MIN_IMPORT_SECONDS
            if _waits(process) and has_imported:
                ready.append(process)
    return ready


def _rank_processes(supervisor: int) -> list[psutil.Process]:
    """Return running and waiting processes in starting order."""
    found = []
    with suppress(psutil.Error):
        for process in psutil.Process(supervisor).children():
            with suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and PIPE_VARIABLE in process.environ():
                    found.append(process)
    return sorted(found, key=lambda process: (process.create_time(), process.pid))


def _waits(process: psutil.Process) -> bool:
    """Whether a process is waiting for its rank, still holding its end of the pipe."""
    with suppress(psutil.Error, OSError):
        descriptor = process.environ()[PIPE_VARIABLE]
        return Path(f"/proc/{process.pid}/fd/{descriptor}").readlink().name.startswith("pipe:")
    return False

"""Reading one start's progress from the run directory."""

import os
from pathlib import Path
from typing import Any

from megatape.checkpoint.save.partial_folder import PARTIAL
from megatape.reliability.lease.holder import read_holder
from megatape.run_folder import RunFolder, named_step, read_metrics
from megatape.utils.files.json_lines import read_lines
from tests.soak.launch import Start


class Progress:
    """Progress of the start about to be made.

    Attributes:
        folder: Run directory.
        origin: Checkpoint from which it should continue, None for a new run.
    """

    def __init__(self, folder: RunFolder, origin: Path | None) -> None:
        self.folder = folder
        self.origin = origin
        self._step = named_step(origin) if origin else 0
        self._metrics = self._state_of_metrics()
        self._partial = self._partial_folders()
        self._num_events = len(list(read_lines(folder.events)))

    def met(self, start: Start) -> bool:
        """Whether the ranks have met: the main rank has taken the lease."""
        try:
            holder = read_holder(self.folder.lease.read_bytes())
        except FileNotFoundError:
            return False
        return holder is not None and holder.pid in {process.pid for process in start.processes()}

    @property
    def steps(self) -> int:
        """Number of steps recorded by this start. Its first step replaces the file with steps from earlier starts."""
        if self._state_of_metrics() == self._metrics:
            return 0
        last_step = max(read_metrics(self.folder.metrics), default=0)
        return max(0, last_step - self._step)

    @property
    def saving(self) -> bool:
        """Whether the run is writing a checkpoint."""
        return bool(self._partial_folders() - self._partial)

    @property
    def events(self) -> list[dict[str, Any]]:
        """Events recorded by this start."""
        events = [event for _, event in read_lines(self.folder.events)]
        return events[self._num_events :]

    def _partial_folders(self) -> set[str]:
        try:
            return {entry.name for entry in os.scandir(self.folder.checkpoints) if entry.name.endswith(PARTIAL)}
        except FileNotFoundError:
            return set()

    def _state_of_metrics(self) -> tuple[int, int] | None:
        try:
            status = self.folder.metrics.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_size

"""What one start of a run has made so far, as its folder shows it."""

import os
from pathlib import Path
from typing import Any

from megatape.checkpoint.partial_folder import PARTIAL
from megatape.reliability.lease.holder import read_holder
from megatape.run_folder import RunFolder, named_step, read_metrics
from megatape.utils.json_lines import read_lines
from tests.soak.launch import Start


class Progress:
    """Of a start that is about to be made. origin: the checkpoint that it should continue from, None for a new run."""

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
        """How many steps it has recorded. Until the first one, which replaces the file, those of earlier starts are there."""
        if self._state_of_metrics() == self._metrics:
            return 0
        return max(0, max(read_metrics(self.folder.metrics), default=0) - self._step)

    @property
    def saving(self) -> bool:
        """Whether it has begun to write a checkpoint that is not complete."""
        return bool(self._partial_folders() - self._partial)

    @property
    def events(self) -> list[dict[str, Any]]:
        """What it has recorded besides."""
        return [event for _, event in read_lines(self.folder.events)][self._num_events :]

    def _partial_folders(self) -> set[str]:
        try:
            return {entry.name for entry in os.scandir(self.folder.checkpoints) if entry.name.endswith(PARTIAL)}
        except FileNotFoundError:
            return set()

    def _state_of_metrics(self) -> tuple[int, int] | None:
        try:
            found = self.folder.metrics.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size

"""Reports the start of training: a description, warnings, and an event."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from megatape.reliability.run_log import Event
from megatape.run_environment import RunEnvironment
from megatape.training.reporting.environment_record import EnvironmentRecord
from megatape.training.reporting.recorded_steps import recorded_steps
from megatape.utils.text.units import plural


class StartReport:
    """Report about the start of training, written by the main rank.

    Create it before anything is written into the run directory.

    Args:
        environment: Run environment.
        record: Software, ranks and device.
        device_type: Device type, such as "cuda".
        description: Lines describing the run.
        warnings: Warnings about the configuration.
    """

    def __init__(
        self,
        environment: RunEnvironment,
        record: EnvironmentRecord,
        device_type: str,
        description: str,
        warnings: list[str],
    ) -> None:
        self._environment = environment
        self._record = record
        self._device_type = device_type
        self._description = description
        self._warnings = warnings
        self._last_written = _last_written(environment)

    def write(self, step: int, origin: Path | None) -> None:
        """Print description and warnings, and record the event "started" or "resumed".

        Args:
            step: Step after which training starts.
            origin: Checkpoint that the run continues from, or None for a new run.
        """
        environment = self._environment
        if not environment.topology.is_main:
            return
        environment.log.info(self._description)
        for warning in self._warnings:
            environment.log.warning(warning)
        event: Event = "started"
        parts = [f"{plural(environment.topology.world_size, 'rank')} on {self._device_type}"]
        if origin:
            event = "resumed"
            parts.append(f"from {origin}")
        last = max(recorded_steps(environment), default=0)
        if last > step:
            parts.append(f"steps {step + 1} to {last} are made again")
        environment.log.read_earlier_events()
        environment.log.record(event, ", ".join(parts), environment=self._record.to_json(), **self._idle())

    def _idle(self) -> dict[str, Any]:
        """Return the seconds without a line of metrics before this process started, {} for a new run."""
        if self._last_written is None:
            return {}
        age = time.time() - self._last_written
        own_age = self._environment.clock.read().parts.total
        return {"idle": round(max(0.0, age - own_age), 3)}


def _last_written(environment: RunEnvironment) -> float | None:
    """Return the time of the last line that an earlier process wrote to metrics.jsonl, in seconds since 1970."""
    with suppress(OSError):
        status = environment.folder.metrics.stat()
        if status.st_size:
            return status.st_mtime
    return None

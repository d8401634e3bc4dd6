"""Reports the start of training: a description, warnings, and an event."""

from pathlib import Path

from megatape.reliability.run_log import Event
from megatape.run_environment import RunEnvironment
from megatape.training.reporting.environment_record import EnvironmentRecord
from megatape.training.reporting.recorded_steps import recorded_steps
from megatape.utils.units import plural


class StartReport:
    """Report about the start of training, written by the main rank.

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

    def write(self, step: int, origin: Path | None) -> None:
        """Print description and warnings, and record the event "started" or "resumed".

        Args:
            step: Step after which training starts.
            origin: Checkpoint that the run continues from, None for a new run.
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
        environment.log.record(event, ", ".join(parts), environment=self._record.to_json())

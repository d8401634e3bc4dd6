"""Reports the start of a run: what it trains, warnings about its configuration, and the event in its folder."""

from pathlib import Path

from megatape.checkpoint.environment import RunEnvironment
from megatape.reliability.run_log import Event
from megatape.training.reporting.environment_record import EnvironmentRecord
from megatape.training.reporting.recorded_steps import recorded_steps
from megatape.utils.units import plural


class StartReport:
    """Report about the start of training. The main rank writes it.

    Args:
        environment: Environment of the run.
        record: Software, ranks and device of the run.
        device_type: Type of the ranks' devices.
        introduction: Lines about what the run trains.
        warnings: Warnings about the configuration.
    """

    def __init__(
        self,
        environment: RunEnvironment,
        record: EnvironmentRecord,
        device_type: str,
        introduction: str,
        warnings: list[str],
    ) -> None:
        self._environment = environment
        self._record = record
        self._device_type = device_type
        self._introduction = introduction
        self._warnings = warnings

    def write(self, step: int, origin: Path | None) -> None:
        """Print introduction and warnings, and record the event "started" or "resumed".

        Args:
            step: Step after which training starts.
            origin: Folder of the checkpoint that the run continues from, None for a new run.
        """
        environment = self._environment
        if not environment.topology.is_main:
            return
        environment.log.info(self._introduction)
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

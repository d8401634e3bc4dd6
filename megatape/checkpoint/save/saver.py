"""Saves a run's present state: at once, with retries, or in the background."""

import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from megatape.checkpoint.format.stored_weights import StoredWeights, names_in_base
from megatape.checkpoint.interfaces import SavedRun
from megatape.checkpoint.save.background import Background, SaveInFlight
from megatape.checkpoint.save.run_writer import RunWriter
from megatape.reliability.watch.pace import PhaseKind
from megatape.run_environment import RunEnvironment
from megatape.utils.files.retries import retry_transient_errors
from megatape.zero.engine import Engine


class SavePhase(Enum):
    """Parts of a save that block training. Each has its own duration history and timeout."""

    # The whole save.
    FULL = 0
    # Copying the state for a save in the background.
    SNAPSHOT = 1
    # Waiting for a save in the background.
    FINISH = 2


@dataclass(frozen=True)
class FinishedSave:
    """A save that has written its checkpoint.

    Attributes:
        checkpoint: The checkpoint.
        waited: Seconds that training waited for it.
    """

    checkpoint: Path
    waited: float


class Saver:
    """Saves a run's present state. All methods are collective.

    Failing to write raises OSError. Differing replicas and weights that are not finite raise TrainingDiverged.

    Args:
        environment: Run environment.
        engine: Engine with weights and optimizer state.
        run: The rest of the run's state.
        keep: Checkpoints to keep (checkpoint.keep).
        in_background: Whether a thread writes checkpoints while training continues (checkpoint.background).

    Attributes:
        background: Thread writing checkpoints, or None if training waits for saves.
    """

    def __init__(
        self,
        environment: RunEnvironment,
        engine: Engine,
        run: SavedRun,
        keep: int,
        in_background: bool,
    ) -> None:
        self._environment = environment
        self._engine = engine
        self._run = run
        self._writer = RunWriter(environment, run, keep)
        # Frozen weights that checkpoints leave out, or None if they have all weights.
        self._base: StoredWeights | None = None
        self.background: Background | None = None
        if in_background:
            self.background = Background()

    def leave_out(self, base: StoredWeights | None) -> None:
        """Leave the weights of a base out of all later checkpoints. With None, write all weights."""
        self._base = base

    @property
    def in_flight(self) -> SaveInFlight | None:
        """Save being written in the background, or None."""
        if self.background is None:
            return None
        return self.background.in_flight

    def save(self) -> FinishedSave:
        """Save the present step."""
        started = time.perf_counter()
        self._enter(self._run.step, SavePhase.FULL)
        checkpoint = self._write()
        return FinishedSave(checkpoint, time.perf_counter() - started)

    def save_with_retries(self) -> FinishedSave:
        """Save the present step, and retry for some seconds if that fails."""
        log = self._environment.log

        def attempt() -> Path:
            log.flush()
            self._run.callbacks.flush()
            return self._write()

        started = time.perf_counter()
        self._enter(self._run.step, SavePhase.FULL)
        checkpoint = retry_transient_errors(attempt, lambda error: True, log.warning)
        return FinishedSave(checkpoint, time.perf_counter() - started)

    def start(self) -> None:
        """Copy the present state, and let the background thread write it."""
        background = self.background
        assert background is not None
        step = self._run.step
        self._enter(step, SavePhase.SNAPSHOT)
        started = time.perf_counter()
        self._engine.check_replicas()
        background.snapshot.take(self._engine.state, names_in_base(self._base))
        contents = self._writer.capture(background.snapshot, self._base)
        pace = self._environment.pace

        def write_watched() -> Path:
            description = f"the save after step {step} in the background"
            with pace.in_background(PhaseKind.SAVE, description, SavePhase.FULL.value):
                return self._writer.write(contents)

        waited = time.perf_counter() - started
        background.start(SaveInFlight(step, waited), write_watched)

    def wait(self, in_flight: SaveInFlight) -> FinishedSave:
        """Wait for the save in flight, and take its result."""
        self._enter(in_flight.step, SavePhase.FINISH)
        return self.collect(in_flight)

    def collect(self, in_flight: SaveInFlight) -> FinishedSave:
        """Take the result of the save in flight. Only waits if this rank has not finished its share."""
        assert self.background is not None
        started = time.perf_counter()
        checkpoint = self.background.finish()
        return FinishedSave(checkpoint, in_flight.waited + time.perf_counter() - started)

    def _write(self) -> Path:
        self._engine.check_replicas()
        contents = self._writer.capture(self._engine.state, self._base)
        return self._writer.write(contents)

    def _enter(self, step: int, phase: SavePhase) -> None:
        """Tell the watch over the ranks that this rank is saving."""
        self._environment.pace.enter(PhaseKind.SAVE, f"the save after step {step}", phase.value)

"""Manager of a run's checkpoints: saves the state of training, and returns to saved states."""

import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from types import TracebackType

from megatape.checkpoint.background import Background, SaveInFlight
from megatape.checkpoint.environment import RunEnvironment
from megatape.checkpoint.interfaces import SavedRun, SavedState
from megatape.checkpoint.reader import CheckpointReader
from megatape.checkpoint.run_writer import RunWriter
from megatape.checkpoint.save_report import SaveReport
from megatape.checkpoint.selection import find_stable_checkpoint
from megatape.checkpoint.tensors import StoredWeights
from megatape.checkpoint.writer import COLLECTIVE_ERRORS
from megatape.config import CheckpointConfig
from megatape.errors import NotSaved
from megatape.reliability.watch.pace import PhaseKind
from megatape.run_folder import named_step
from megatape.utils.retries import retry_transient_errors
from megatape.zero.engine import Engine


class SavePhase(Enum):
    """Parts of a save that block training. Each has its own duration history and timeout."""

    # The whole save.
    FULL = 0
    # Copying the state for a save in the background.
    SNAPSHOT = 1
    # Waiting for a save in the background.
    FINISH = 2


class CheckpointManager(AbstractContextManager["CheckpointManager"]):
    """Checkpoints of a run. All methods are collective.

    A save that fails costs a warning, and the next one is due after the usual interval. After several failures in a row, and at
    the end, a save is retried for some seconds, as long as schedulers wait after SIGTERM. If it still fails, the run ends.

    As a context manager around training, it finishes a save in flight when training ends with an error, unless ranks are gone.

    Args:
        environment: Environment of the run.
        config: Number of checkpoints to keep, and whether to save in the background.
        engine: Engine with the weights and the optimizer state.
        run: The rest of the run's state, and its callbacks.

    Attributes:
        background: Thread that writes checkpoints, None if training waits for saves.
        saved_step: Step of the last saved state: a checkpoint, or the state that was loaded.
    """

    def __init__(
        self,
        environment: RunEnvironment,
        config: CheckpointConfig,
        engine: Engine,
        run: SavedRun,
    ) -> None:
        self._environment = environment
        self._config = config
        self._engine = engine
        self._run = run
        self._writer = RunWriter(environment, run, config.keep)
        self._report = SaveReport(environment.log, config.interval)
        self.background: Background | None = None
        if config.background:
            self.background = Background()
        self._base: StoredWeights | None = None
        self.saved_step = 0
        # Step of the last checkpoint written by this process and not rolled back.
        self._written_step: int | None = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not isinstance(error, COLLECTIVE_ERRORS):
            return
        try:
            self._wait()
        except COLLECTIVE_ERRORS as failure:
            self._environment.log.warning(str(failure))

    @property
    def has_ended(self) -> bool:
        """Whether this rank's share of the save in flight is written.

        Raises an error that the other ranks do not share, and that would leave them waiting.
        """
        return self.background is not None and self.background.has_ended()

    def load(self, state: SavedState) -> None:
        """Fill master weights and optimizer state, and count the state as saved.

        Args:
            state: State to load. Checkpoints of later steps no longer count as written.
        """
        self._engine.state.load(state.read, state.updates)
        self.saved_step = state.step
        self._written_step = None
        self._base = state.base

    def save(self) -> bool:
        """Save the present step, in the background if so configured.

        The save is postponed while heartbeats of the run's lease fail. It is also postponed while metrics cannot be written,
        until the next save is due: if the run is killed, a resume would lack the metrics of the checkpoint's steps.

        Returns:
            Whether the save was tried.

        Raises:
            NotSaved: It could not be written, like several before.
            TrainingDiverged: Replicas differ, or a weight is not finite.
        """
        self._wait()
        step = self._run.step
        if self._written_step == step:
            # Waiting has ended in the last attempts after a failed save, and one has succeeded.
            return True
        if self._is_postponed(step):
            return False
        if self.background is None:
            self._enter(step, SavePhase.FULL)
            self._conclude(self._save_now)
        else:
            self._start_in_background(step, self.background)
        return True

    def poll(self, num_ended: float) -> None:
        """Finish the save in flight if all ranks have written their shares. Does not wait.

        Args:
            num_ended: Number of ranks whose `has_ended` is True.
        """
        # A rollback may have finished the save since the ranks counted.
        if self.background is None or self.background.in_flight is None:
            return
        if num_ended == self._environment.topology.world_size:
            self._conclude(self.background.finish, self.background.in_flight.waited)

    def roll_back(self, stable: Callable[[Iterable[int]], list[int]]) -> CheckpointReader | None:
        """Return to the newest valid stable checkpoint, and move newer ones aside. A save in flight is finished first.

        Args:
            stable: Returns the steps of stable checkpoints, newest first, given the steps of all checkpoints.

        Returns:
            The loaded checkpoint, or None if there is none, so that nothing has changed.
        """
        self._wait()
        with self._environment.pace.waiting("the return to a checkpoint"):
            reader = find_stable_checkpoint(self._environment, stable)
            if reader is not None:
                self.load(reader)
        return reader

    def ensure_saved(self) -> Path:
        """Finish the save in flight, and save the present step unless this process has saved it.

        Training may continue afterwards.

        Returns:
            The checkpoint of the present step.

        Raises:
            NotSaved: It could not be written.
            TrainingDiverged: Replicas differ, or a weight is not finite.
        """
        self._wait()
        step = self._run.step
        if self._written_step != step:
            self._save_with_retries(step)
        return self._environment.folder.checkpoint(step)

    def _is_postponed(self, step: int) -> bool:
        """Whether a save has to wait for the file system. Warns when a save is due."""
        environment = self._environment
        is_due = step % self._config.interval == 0
        if environment.on_main(lambda: environment.lease.is_late):
            if is_due:
                environment.log.warning(f"{environment.folder.directory} does not answer: the save after step {step} waits")
            return True

        has_metrics = environment.on_main(self._run.callbacks.flush)
        if not has_metrics and step - self.saved_step < 2 * self._config.interval:
            if is_due:
                environment.log.warning(f"the save after step {step} waits until its metrics can be written")
            return True
        return False

    def _start_in_background(self, step: int, background: Background) -> None:
        """Copy the present state, and let the background thread write it."""
        self._enter(step, SavePhase.SNAPSHOT)
        started = time.perf_counter()
        self._engine.check_replicas()
        left_out: Collection[str] = ()
        if self._base is not None:
            left_out = self._base.tensors
        background.snapshot.take(self._engine.state, left_out)
        write = self._writer.capture(background.snapshot, self._base)
        pace = self._environment.pace

        def write_watched() -> Path:
            description = f"the save after step {step} in the background"
            with pace.in_background(PhaseKind.SAVE, description, SavePhase.FULL.value):
                return write()

        waited = time.perf_counter() - started
        background.start(SaveInFlight(step, waited), write_watched)

    def _save_with_retries(self, step: int) -> None:
        """Save the present step, and retry for some seconds if that fails. Raises as `ensure_saved`."""
        environment = self._environment

        def attempt() -> Path:
            environment.log.flush()
            self._run.callbacks.flush()
            return self._save_now()

        self._enter(step, SavePhase.FULL)
        try:
            checkpoint = self._finish(lambda: retry_transient_errors(attempt, lambda error: True, environment.log.warning))
        except OSError as error:
            raise NotSaved(
                f"{error}; steps {self.saved_step + 1} to {step} are not saved; once a checkpoint can be written, "
                "--resume auto makes them again"
            ) from error
        # Outside of the try block, because an error of the listener is not a failed save.
        self._run.callbacks.on_checkpoint(checkpoint)

    def _wait(self) -> None:
        """Wait for the save in flight, if there is one. Raises as `ensure_saved`."""
        if self.background is not None and self.background.in_flight is not None:
            save = self.background.in_flight
            self._enter(save.step, SavePhase.FINISH)
            self._conclude(self.background.finish, save.waited)

    def _save_now(self) -> Path:
        """Save the present state and return the checkpoint."""
        self._engine.check_replicas()
        write = self._writer.capture(self._engine.state, self._base)
        return write()

    def _enter(self, step: int, phase: SavePhase) -> None:
        """Tell the watch over the ranks that this rank is saving."""
        self._environment.pace.enter(PhaseKind.SAVE, f"the save after step {step}", phase.value)

    def _conclude(self, save: Callable[[], Path], waited: float = 0.0) -> None:
        """Run a save and report its success or failure. After too many failures, save with retries.

        Args:
            save: Writes a checkpoint, or waits until it is written.
            waited: Seconds that training has waited for the save so far.
        """
        try:
            checkpoint = self._finish(save, waited)
        except OSError as error:
            if self._report.failed(error):
                self.ensure_saved()
            return
        # Outside of the try block, because an error of the listener is not a failed save.
        self._run.callbacks.on_checkpoint(checkpoint)

    def _finish(self, save: Callable[[], Path], waited: float = 0.0) -> Path:
        """Run a save, report the checkpoint, and return it. See `_conclude`."""
        started = time.perf_counter()
        checkpoint = save()
        waited += time.perf_counter() - started
        self.saved_step = named_step(checkpoint)
        self._written_step = self.saved_step
        self._report.succeeded(checkpoint, waited)
        return checkpoint

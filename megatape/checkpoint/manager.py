"""Manager of a run's checkpoints: saves the state of training, and returns to saved states."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType

from megatape.checkpoint.environment import RunEnvironment
from megatape.checkpoint.interfaces import SavedRun, SavedState
from megatape.checkpoint.reader import CheckpointReader
from megatape.checkpoint.save_report import SaveReport
from megatape.checkpoint.saver import FinishedSave, Saver
from megatape.checkpoint.selection import find_stable_checkpoint
from megatape.checkpoint.writer import COLLECTIVE_ERRORS
from megatape.config import CheckpointConfig
from megatape.errors import NotSaved
from megatape.run_folder import named_step
from megatape.zero.engine import Engine


class CheckpointManager(AbstractContextManager["CheckpointManager"]):
    """Checkpoints of a run. All methods are collective.

    The manager has five verbs: `load` a state, `save` when it is due, `poll` a save in the background, `roll_back` to an older
    checkpoint, and `ensure_saved` before the run ends.

    A failed save costs a warning, and the next one is due after the usual interval. After several failures in a row, and at
    the end, a save is retried for some seconds, as long as schedulers wait after SIGTERM. If it still fails, the run ends.

    As a context manager around training, it finishes a save in flight when training ends with an error, unless ranks are gone.

    Args:
        environment: Environment of the run.
        config: Number of checkpoints to keep, and whether to save in the background.
        engine: Engine with the weights and the optimizer state.
        run: The rest of the run's state, and its callbacks.

    Attributes:
        saver: Writes the checkpoints.
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
        self._interval = config.interval
        self._engine = engine
        self._run = run
        self.saver = Saver(environment, engine, run, config.keep, config.background)
        self._report = SaveReport(environment.log, config.interval)
        self.saved_step = 0
        # Step of the last checkpoint written by this process and not rolled back.
        self._written_step: int | None = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not isinstance(error, COLLECTIVE_ERRORS):
            return
        try:
            self._finish_save_in_flight()
        except COLLECTIVE_ERRORS as save_error:
            self._environment.log.warning(str(save_error))

    @property
    def has_ended(self) -> bool:
        """Whether this rank's share of the save in flight is written.

        Raises an error that the other ranks do not share, and that would leave them waiting.
        """
        background = self.saver.background
        return background is not None and background.has_ended()

    def load(self, state: SavedState) -> None:
        """Fill master weights and optimizer state, and count the state as saved.

        Args:
            state: State to load. Checkpoints of later steps no longer count as written.
        """
        self._engine.state.load(state.read, state.updates)
        self.saved_step = state.step
        self._written_step = None
        self.saver.base = state.base

    def save(self) -> bool:
        """Save the present step, in the background if so configured.

        The save is postponed while heartbeats of the run's lease fail. It is also postponed while metrics cannot be written,
        until the next save is due: if the run is killed, a resume would lack the metrics of the checkpoint's steps.

        Returns:
            Whether the save was tried.

        Raises:
            NotSaved: Writing it failed, like several saves before.
            TrainingDiverged: Replicas differ, or a weight is not finite.
        """
        self._finish_save_in_flight()
        step = self._run.step
        if self._written_step == step:
            # The save in flight was the last of several failures, and its retries have saved the present step.
            return True
        if self._is_postponed(step):
            return False
        if self.saver.background is None:
            self._conclude(self.saver.save)
        else:
            self.saver.start(self.saver.background)
        return True

    def poll(self, num_ended: float) -> None:
        """Finish the save in flight if all ranks have written their shares. Does not wait.

        Args:
            num_ended: Number of ranks whose `has_ended` is True.
        """
        in_flight = self.saver.in_flight
        # A rollback may have finished the save since the ranks counted.
        if in_flight is not None and num_ended == self._environment.topology.world_size:
            self._conclude(partial(self.saver.collect, in_flight))

    def roll_back(self, stable: Callable[[Iterable[int]], list[int]]) -> CheckpointReader | None:
        """Return to the newest valid stable checkpoint, and move newer ones aside. A save in flight is finished first.

        Args:
            stable: Returns the steps of stable checkpoints, newest first, given the steps of all checkpoints.

        Returns:
            The loaded checkpoint, or None if there is none, so that nothing has changed.
        """
        self._finish_save_in_flight()
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
            NotSaved: Writing it failed.
            TrainingDiverged: Replicas differ, or a weight is not finite.
        """
        self._finish_save_in_flight()
        step = self._run.step
        if self._written_step != step:
            self._accept(self._save_with_retries())
        return self._environment.folder.checkpoint(step)

    def _finish_save_in_flight(self) -> None:
        """Wait for the save in flight, if there is one. Raises as `ensure_saved`."""
        in_flight = self.saver.in_flight
        if in_flight is not None:
            self._conclude(partial(self.saver.wait, in_flight))

    def _is_postponed(self, step: int) -> bool:
        """Whether a save has to wait for the file system. Warns when a save is due."""
        environment = self._environment
        is_due = step % self._interval == 0
        if environment.on_main(lambda: environment.lease.is_late):
            if is_due:
                environment.log.warning(f"{environment.folder.directory} does not answer: the save after step {step} waits")
            return True

        has_metrics = environment.on_main(self._run.callbacks.flush)
        if not has_metrics and step - self.saved_step < 2 * self._interval:
            if is_due:
                environment.log.warning(f"the save after step {step} waits until its metrics can be written")
            return True
        return False

    def _conclude(self, save: Callable[[], FinishedSave]) -> None:
        """Run a save, and report its success or failure. After too many failures, save the present step with retries.

        Args:
            save: Method of the saver that writes a checkpoint, or finishes the save in flight.
        """
        try:
            finished = save()
        except OSError as error:
            if not self._report.failed(error):
                return
            finished = self._save_with_retries()
        self._accept(finished)

    def _save_with_retries(self) -> FinishedSave:
        """Save the present step with retries. Raises as `ensure_saved`."""
        try:
            return self.saver.save_with_retries()
        except OSError as error:
            raise NotSaved(
                f"{error}; steps {self.saved_step + 1} to {self._run.step} are not saved; once a checkpoint can be written, "
                "--resume auto makes them again"
            ) from error

    def _accept(self, save: FinishedSave) -> None:
        """Count a checkpoint as written, and report it. An error of the listener is not a failed save."""
        self.saved_step = named_step(save.checkpoint)
        self._written_step = self.saved_step
        self._report.succeeded(save.checkpoint, save.waited)
        self._run.callbacks.on_checkpoint(save.checkpoint)

"""Manager of a run's checkpoints: saves the training state, and returns to saved states."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType

from megatape.checkpoint.interfaces import SavedRun, SavedState
from megatape.checkpoint.load.reader import CheckpointReader
from megatape.checkpoint.load.selection import find_stable_checkpoint
from megatape.checkpoint.save.save_report import SaveReport
from megatape.checkpoint.save.saver import FinishedSave, Saver
from megatape.checkpoint.save.writer import COLLECTIVE_ERRORS
from megatape.config import CheckpointConfig
from megatape.errors import NotSaved, flag, marked_message
from megatape.reliability.goodput.parts import TimePart
from megatape.run_environment import RunEnvironment
from megatape.run_folder import named_step
from megatape.zero.engine import Engine


class CheckpointManager(AbstractContextManager["CheckpointManager"]):
    """Checkpoints of a run. All methods are collective.

    The manager has five verbs: `load` a state, `save` when it is due, `poll` a save in the background, `roll_back` to an older
    checkpoint, and `ensure_saved` before the run ends.

    After a failed save, the run warns and saves again at the next interval. After several failures in a row, and at the end, it
    retries for some seconds, as long as schedulers wait after SIGTERM. If saving still fails, the run ends.

    As a context manager around training, it finishes the save in flight when training ends with an error, unless ranks are
    gone.

    Args:
        environment: Run environment.
        config: Interval between saves, checkpoints to keep, and whether to save in the background.
        engine: Engine with weights and optimizer state.
        run: The rest of the run's state, and its callbacks.

    Attributes:
        saver: Writes the checkpoints.
        saved_step: Last saved step: that of a checkpoint, or of the loaded state.
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
        self._report = SaveReport(environment.log, environment.clock, config.interval)
        self.saved_step = 0
        # Last step that this process has written and not rolled back.
        self._written_step: int | None = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not isinstance(error, COLLECTIVE_ERRORS):
            return
        try:
            self._finish_save_in_flight()
        except COLLECTIVE_ERRORS as save_error:
            self._environment.log.warning(str(save_error))

    def save_has_ended(self) -> bool:
        """Whether this rank has written its share of the save in flight.

        Raises errors of this rank alone, because the other ranks would wait for it forever.
        """
        background = self.saver.background
        return background is not None and background.has_ended()

    def load(self, state: SavedState) -> None:
        """Load master weights and optimizer state, and count the state as saved.

        Args:
            state: State to load. Later checkpoints no longer count as written.
        """
        with self._environment.clock.measure(TimePart.WEIGHTS):
            self._engine.state.load(state.read, state.updates)
        self.saved_step = state.step
        self._written_step = None
        self.saver.leave_out(state.base)

    def save(self) -> bool:
        """Save the present step, in the background if so configured.

        The save is postponed while lease heartbeats fail. It is also postponed while metrics cannot be written, until the
        next save is due: if the run were killed after saving, a resumed run would lack metrics.

        Returns:
            Whether the manager tried to save.

        Raises:
            NotSaved: Saving failed, after several failures before.
            TrainingDiverged: Replicas differ, or a weight is not finite.
        """
        self._finish_save_in_flight()
        step = self._run.step
        if self._written_step == step:
            # The save in flight was the last of several failures, and the retries have saved the present step.
            return True
        if self._is_postponed(step):
            return False
        if self.saver.background is None:
            self._conclude(self.saver.save)
        else:
            self.saver.start()
        return True

    def poll(self, num_ended: float) -> None:
        """Finish the save in flight if all ranks have written their shares, without waiting.

        Args:
            num_ended: Number of ranks whose `save_has_ended` returns True.
        """
        in_flight = self.saver.in_flight
        # A rollback may have finished the save since the ranks counted.
        if in_flight is not None and num_ended == self._environment.topology.world_size:
            self._conclude(partial(self.saver.collect, in_flight))

    def roll_back(self, stable: Callable[[Iterable[int]], list[int]]) -> CheckpointReader | None:
        """Return to the newest valid stable checkpoint and move newer ones aside, after finishing the save in flight.

        Args:
            stable: Returns the steps of stable checkpoints, newest first, given the steps of all checkpoints.

        Returns:
            The loaded checkpoint, or None if no stable one is valid. Then nothing has changed.
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
            NotSaved: Saving failed.
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
            with self._environment.clock.measure(TimePart.SAVES):
                self._conclude(partial(self.saver.wait, in_flight))

    def _is_postponed(self, step: int) -> bool:
        """Whether saving has to wait for the file system. Warns if a save is due at this step."""
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
        """Run a save and report its success or failure. After too many failures, save the present step with retries.

        Args:
            save: Writes a checkpoint, or finishes the save in flight.
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
                f"{marked_message(error)}; steps {self.saved_step + 1} to {self._run.step} are not saved; once a checkpoint "
                f"can be written, {flag('resume')} auto makes them again"
            ) from error

    def _accept(self, save: FinishedSave) -> None:
        """Count a checkpoint as written, and report it. An error in a callback is not a failed save."""
        self.saved_step = named_step(save.checkpoint)
        self._written_step = self.saved_step
        self._report.succeeded(save.checkpoint, save.waited)
        self._run.callbacks.on_checkpoint(save.checkpoint)

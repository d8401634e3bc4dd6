"""Manager of a run's checkpoints: saves the state of training, and returns to saved states."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Protocol

from torch import Tensor

from megatape.checkpoint.background import Background, SaveInFlight
from megatape.checkpoint.environment import RunEnvironment
from megatape.checkpoint.pruning import prune
from megatape.checkpoint.reader import CheckpointReader
from megatape.checkpoint.rng import rng_snapshot
from megatape.checkpoint.selection import find_stable_checkpoint
from megatape.checkpoint.state import State
from megatape.checkpoint.tensors import StoredWeights
from megatape.checkpoint.writer import COLLECTIVE_ERRORS, CheckpointContents, write_checkpoint
from megatape.config import CheckpointConfig
from megatape.errors import NotSaved
from megatape.reliability.watch.pace import PhaseKind
from megatape.run_folder import named_step
from megatape.utils.retries import retry_transient_errors
from megatape.zero.engine import Engine
from megatape.zero.tensors import TensorSource

# A run ends after this many saves in a row have failed.
MAX_CONSECUTIVE_FAILED_SAVES = 3


class SavePhase(Enum):
    """Parts of a save that block training. Each has its own duration history and timeout."""

    # The whole save.
    FULL = 0
    # Copying the state for a save in the background.
    SNAPSHOT = 1
    # Waiting for a save in the background.
    FINISH = 2


class SavedState(Protocol):
    """State of training at one step: a checkpoint, or the initial state of a run."""

    @property
    def step(self) -> int:
        """Number of steps of the run."""

    @property
    def updates(self) -> int:
        """Number of steps that the optimizer has taken."""

    @property
    def base(self) -> StoredWeights | None:
        """Frozen weights that checkpoints leave out, None if they have all weights."""

    def read(self, kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice) -> Tensor:
        """Read some rows and columns of a tensor (zero/tensors.py)."""


class SaveListener(Protocol):
    """Interface for objects that are notified about saves."""

    def flush(self) -> bool:
        """Write what could not be written before. Returns whether the metrics of all steps are written."""

    def on_checkpoint(self, checkpoint: Path) -> None:
        """Handle a new checkpoint."""


class CheckpointManager(AbstractContextManager["CheckpointManager"]):
    """Checkpoints of a run. All methods are collective.

    A save that fails costs a warning, and the next one is due after the usual interval. After MAX_CONSECUTIVE_FAILED_SAVES, and
    at the end, a save is retried for some seconds, as long as schedulers wait after SIGTERM. If it still fails, the run ends.

    As a context manager around training, it finishes a save in flight when training ends with an error, unless ranks are gone.

    Args:
        environment: Environment of the run.
        config: Number of checkpoints to keep, and whether to save in the background.
        engine: Engine with the weights and the optimizer state.
        step: Returns the present step.
        state: Returns the rest of the present state, for state.json.
        tokenizer: Name -> content of the tokenizer's files.
        protected: Returns the steps of checkpoints to keep besides the newest ones, given the steps of all checkpoints and the
            step of the newest.
        listener: Object to notify about saves.

    Attributes:
        saved_step: Step of the last saved state: a checkpoint, or the state that was loaded.
    """

    def __init__(
        self,
        environment: RunEnvironment,
        config: CheckpointConfig,
        engine: Engine,
        step: Callable[[], int],
        state: Callable[[], State],
        tokenizer: Mapping[str, bytes],
        protected: Callable[[Iterable[int], int], Collection[int]],
        listener: SaveListener,
    ) -> None:
        self._environment = environment
        self._config = config
        self._engine = engine
        self._present_step = step
        self._present_state = state
        self._tokenizer = tokenizer
        self._protected = protected
        self._listener = listener
        self._background: Background | None = None
        if config.background:
            self._background = Background()
        self._base: StoredWeights | None = None
        self.saved_step = 0
        # Step of the last checkpoint written by this process and not rolled back.
        self._written_step: int | None = None
        self._num_failures = 0

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
        return self._background is not None and self._background.has_ended()

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
        step = self._present_step()
        if self._written_step == step:
            # Waiting has ended in the last attempts after a failed save, and one has succeeded.
            return True
        if self._is_postponed(step):
            return False
        if self._background is None:
            self._enter(step, SavePhase.FULL)
            self._conclude(self._save_now)
        else:
            self._start_in_background(step, self._background)
        return True

    def poll(self, num_ended: float) -> None:
        """Finish the save in flight if all ranks have written their shares. Does not wait.

        Args:
            num_ended: Number of ranks whose `has_ended` is True.
        """
        # A rollback may have finished the save since the ranks counted.
        if self._background is None or self._background.in_flight is None:
            return
        if num_ended == self._environment.topology.world_size:
            self._conclude(self._background.finish, self._background.in_flight.waited)

    def select_stable(self, stable: Callable[[Iterable[int]], list[int]]) -> CheckpointReader | None:
        """Select a stable checkpoint to return to, and move newer ones aside.

        The caller loads it. A save in flight is finished first.

        Args:
            stable: Returns the steps of stable checkpoints, newest first, given the steps of all checkpoints.

        Returns:
            The newest valid stable checkpoint, or None if there is none.
        """
        self._wait()
        with self._environment.pace.waiting("the return to a checkpoint"):
            return find_stable_checkpoint(self._environment, stable)

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
        step = self._present_step()
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

        has_metrics = environment.on_main(self._listener.flush)
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
        write = self._writer(background.snapshot)
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
            self._listener.flush()
            return self._save_now()

        self._enter(step, SavePhase.FULL)
        try:
            checkpoint = self._report(
                lambda: retry_transient_errors(attempt, lambda error: True, environment.log.warning),
            )
        except OSError as error:
            raise NotSaved(
                f"{error}; steps {self.saved_step + 1} to {step} are not saved; once a checkpoint can be written, "
                "--resume auto makes them again"
            ) from error
        # Outside of the try block, because an error of the listener is not a failed save.
        self._listener.on_checkpoint(checkpoint)

    def _wait(self) -> None:
        """Wait for the save in flight, if there is one. Raises as `ensure_saved`."""
        if self._background is not None and self._background.in_flight is not None:
            save = self._background.in_flight
            self._enter(save.step, SavePhase.FINISH)
            self._conclude(self._background.finish, save.waited)

    def _save_now(self) -> Path:
        """Save the present state and return the checkpoint."""
        self._engine.check_replicas()
        write = self._writer(self._engine.state)
        return write()

    def _writer(self, tensors: TensorSource) -> Callable[[], Path]:
        """Return a function that writes a checkpoint of the present step, even if it is called after later steps.

        Args:
            tensors: Weights and optimizer state of the present step.
        """
        environment = self._environment
        environment.log.sync_metrics()
        contents = CheckpointContents(self._present_state(), tensors, rng_snapshot(), self._tokenizer, self._base)

        def write() -> Path:
            checkpoint = write_checkpoint(environment, contents)
            if environment.topology.is_main:
                try:
                    environment.folder.mark_latest(checkpoint)
                    prune(environment, checkpoint, self._config.keep, self._protected)
                except OSError as error:
                    # The checkpoint is complete all the same.
                    environment.log.warning(f"after writing {checkpoint}: {error}")
            return checkpoint

        return write

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
            checkpoint = self._report(save, waited)
        except OSError as error:
            self._num_failures += 1
            is_last = self._num_failures == MAX_CONSECUTIVE_FAILED_SAVES
            self._report_failure(error, is_last)
            if is_last:
                self.ensure_saved()
            return
        # Outside of the try block, because an error of the listener is not a failed save.
        self._listener.on_checkpoint(checkpoint)

    def _report_failure(self, error: OSError, is_last: bool) -> None:
        """Report a failed save. is_last: Whether the next attempts are the last ones."""
        log = self._environment.log
        outlook = f"the next is after {self._config.interval} steps"
        if is_last:
            outlook = "the last attempts are now"
        log.record("save failed", str(error))
        log.warning(f"{error} (failure {self._num_failures} in a row, {MAX_CONSECUTIVE_FAILED_SAVES} end the run); {outlook}")

    def _report(self, save: Callable[[], Path], waited: float = 0.0) -> Path:
        """Run a save, report the checkpoint, and return it. See `_conclude`."""
        started = time.perf_counter()
        checkpoint = save()
        waited += time.perf_counter() - started
        self._num_failures = 0
        self.saved_step = named_step(checkpoint)
        self._written_step = self.saved_step
        log = self._environment.log
        log.info(f"checkpoint {checkpoint}; training waited {waited:.3f} s")
        log.record("checkpoint", f"{checkpoint.name}, training waited {waited:.3f} s")
        return checkpoint

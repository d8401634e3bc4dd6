"""Saves a run at its interval, and before it ends."""

from collections.abc import Iterator
from contextlib import contextmanager

from megatape.checkpoint.manager import CheckpointManager
from megatape.errors import DataError, NotSaved
from megatape.training.state import TrainState
from megatape.training.steps.output import StepOutput


class SaveSchedule:
    """Decides after which steps a run is saved. Collective, like its methods.

    Args:
        checkpoints: Checkpoints of the run.
        interval: Number of steps from one save to the next (checkpoint.interval).
    """

    def __init__(self, checkpoints: CheckpointManager, interval: int) -> None:
        self._checkpoints = checkpoints
        self._interval = interval
        self._is_due = False

    def after_step(self, output: StepOutput, is_final: bool) -> bool:
        """Finish a save in the background, and save if it is due.

        Args:
            output: Result of the step.
            is_final: Whether the run may end after the step.

        Returns:
            Whether training has waited for a save.
        """
        self._checkpoints.poll(output.status.requests.num_saves_ended)
        if output.step % self._interval == 0:
            self._is_due = True
        if is_final:
            self._checkpoints.ensure_saved()
            return True
        # Do not save after a skipped step: nothing has changed, and broken weights must not replace a good checkpoint.
        if self._is_due and output.is_applied:
            self._is_due = not self._checkpoints.save()
            return True
        return False

    def after_rollback(self) -> None:
        """Forget a save that was due, because the run is at a checkpoint."""
        self._is_due = False

    def save_rest(self, state: TrainState) -> str:
        """Save the steps since the last checkpoint, if there are any. Returns the checkpoint's folder, or "".

        Raises:
            NotSaved: The checkpoint cannot be written.
        """
        if state.step <= self._checkpoints.saved_step:
            return ""
        return str(self._checkpoints.ensure_saved())

    @contextmanager
    def saving_on_data_error(self, state: TrainState) -> Iterator[None]:
        """Save the steps since the last checkpoint if the block cannot read its data.

        Args:
            state: Progress of the run.

        Raises:
            DataError: The error of the block, with a description of the save.
            NotSaved: The checkpoint cannot be written.
        """
        try:
            yield
        except DataError as error:
            try:
                checkpoint = self.save_rest(state)
            except NotSaved as failure:
                raise NotSaved(f"{error}; {failure}") from None
            saved = "nothing to save"
            if checkpoint:
                saved = f"checkpoint {checkpoint}"
            raise DataError(f"{error}; {saved}; once the data can be read, --resume auto continues") from None

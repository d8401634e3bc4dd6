"""When to save: at each interval, and before the run ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megatape.checkpoint.manager import CheckpointManager
from megatape.errors import DataError, NotSaved
from megatape.training.state import TrainState
from megatape.training.steps.output import StepOutput


class SaveSchedule:
    """Saves when it is due. Collective, like its methods.

    Args:
        checkpoints: Saves and loads checkpoints.
        interval: Steps between saves (checkpoint.interval).
    """

    def __init__(self, checkpoints: CheckpointManager, interval: int) -> None:
        self._checkpoints = checkpoints
        self._interval = interval
        self._is_due = False

    def after_step(self, output: StepOutput, is_final: bool) -> bool:
        """Finish a save in the background, and save if it is due.

        Args:
            output: Step result.
            is_final: Whether the run may end after the step.

        Returns:
            Whether training has waited for saving.
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
        """Cancel a save that was due, because the run is back at a checkpoint."""
        self._is_due = False

    def save_remaining(self, state: TrainState) -> Path | None:
        """Save the steps since the last checkpoint. Returns the new checkpoint, None if there were none.

        Raises:
            NotSaved: The checkpoint cannot be written.
        """
        if state.step <= self._checkpoints.saved_step:
            return None
        return self._checkpoints.ensure_saved()

    @contextmanager
    def saving_on_data_error(self, state: TrainState) -> Iterator[None]:
        """Save the steps since the last checkpoint if the block cannot read its data.

        Raises:
            DataError: The block's error, with a description of the save.
            NotSaved: The checkpoint cannot be written.
        """
        try:
            yield
        except DataError as error:
            try:
                checkpoint = self.save_remaining(state)
            except NotSaved as failure:
                raise NotSaved(f"{error}; {failure}") from None
            outcome = "nothing to save"
            if checkpoint is not None:
                outcome = f"checkpoint {checkpoint}"
            raise DataError(f"{error}; {outcome}; once the data can be read, --resume auto continues") from None

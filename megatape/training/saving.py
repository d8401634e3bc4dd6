"""Schedule of saves: at each interval, and before the run ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megatape.checkpoint.manager import CheckpointManager
from megatape.errors import DataError, NotSaved, flag, marked_message
from megatape.reliability.goodput.parts import TimePart
from megatape.reliability.goodput.process_clock import ProcessClock
from megatape.training.progress import Progress
from megatape.training.steps.output import StepOutput


class SaveSchedule:
    """Saves when it is due. Collective, like its methods.

    Args:
        checkpoints: Saves and loads checkpoints.
        interval: Steps between saves (checkpoint.interval).
        clock: Clock of this process.
    """

    def __init__(self, checkpoints: CheckpointManager, interval: int, clock: ProcessClock) -> None:
        self._checkpoints = checkpoints
        self._clock = clock
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
        with self._clock.measure(TimePart.SAVES):
            return self._after_step(output, is_final)

    def _after_step(self, output: StepOutput, is_final: bool) -> bool:
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

    def save_remaining(self, progress: Progress) -> Path | None:
        """Save the steps since the last checkpoint. Returns the new checkpoint, or None if there were none.

        Raises:
            NotSaved: The checkpoint cannot be written.
        """
        if progress.step <= self._checkpoints.saved_step:
            return None
        with self._clock.measure(TimePart.SAVES):
            return self._checkpoints.ensure_saved()

    @contextmanager
    def saving_on_data_error(self, progress: Progress) -> Iterator[None]:
        """Save the steps since the last checkpoint if the block cannot read its data.

        Raises:
            DataError: The block's error, with a description of the save.
            NotSaved: The checkpoint cannot be written.
        """
        try:
            yield
        except DataError as error:
            try:
                checkpoint = self.save_remaining(progress)
            except NotSaved as failure:
                raise NotSaved(f"{marked_message(error)}; {marked_message(failure)}") from None
            outcome = "nothing to save"
            if checkpoint is not None:
                outcome = f"checkpoint {checkpoint}"
            advice = f"once the data can be read, {flag('resume')} auto continues"
            raise DataError(f"{marked_message(error)}; {outcome}; {advice}") from None

"""Ends a run that has diverged."""

import math

from megatape.checkpoint.manager import CheckpointManager
from megatape.errors import DataError, TrainingDiverged, flag
from megatape.reliability.run_log import RunLog
from megatape.run_folder import RunFolder
from megatape.training.steps.output import SkipReason, StepOutput
from megatape.utils.text.units import plural


class DivergenceCheck:
    """Ends a run after too many consecutive skipped steps, or when its validation loss is not finite.

    Args:
        max_skipped_steps: Maximum number of consecutive skipped steps (training.max_skipped_steps).
        folder: Run directory.
        checkpoints: The run's checkpoints, for advice in messages.
        log: Run log.
    """

    def __init__(
        self,
        max_skipped_steps: int,
        folder: RunFolder,
        checkpoints: CheckpointManager,
        log: RunLog,
    ) -> None:
        self._max_skipped_steps = max_skipped_steps
        self._folder = folder
        self._checkpoints = checkpoints
        self._log = log
        # Consecutive skipped steps so far. Planned skips do not count.
        self._num_skipped = 0

    def check_step(self, output: StepOutput) -> None:
        """Count a skipped step. Call this after writing the step's metrics.

        Raises:
            TrainingDiverged: Too many consecutive steps were skipped.
            DataError: Too many consecutive steps were skipped, and the last of them has no targets.
        """
        if output.skip_reason is not None:
            self._log.record("skipped", f"{output.description}: {output.skip_reason}")
        if output.is_planned:
            return
        if output.is_applied:
            self._num_skipped = 0
            return
        self._num_skipped += 1
        if self._num_skipped <= self._max_skipped_steps:
            return
        skipped = plural(self._num_skipped, "skipped step")
        reason = (
            f"{output.description}: {output.skip_reason}. That makes {skipped} in a row, training.max_skipped_steps allows "
            f"{self._max_skipped_steps}"
        )
        if output.not_computed is SkipReason.NO_TARGETS:
            raise DataError(f"{reason}. Train on data whose samples have targets: check data.samples and data.prompt_end")
        raise TrainingDiverged(f"{reason}. {self._advice()}")

    def after_rollback(self) -> None:
        """Forget the skipped steps that a rollback has undone.

        A run that diverges again and again still ends: it only rolls back again after a number of other steps
        (SpikePolicy.may_roll_back).
        """
        self._num_skipped = 0

    def check_validation(self, loss: float, step: int) -> None:
        """Check the validation loss, so that a run whose steps are all skipped does not end as a success.

        Raises:
            TrainingDiverged: The loss is not finite.
        """
        if not math.isfinite(loss):
            raise TrainingDiverged(
                f"the validation loss after step {step} is {loss}: the weights have diverged. {self._advice()}"
            )

    def _advice(self) -> str:
        changes = "lower optimizer.learning_rate or training.gradient_clip, or lengthen the warm-up"
        if not self._checkpoints.saved_step:
            return f"There is no checkpoint from before: {changes}, check model.init_std, and start again"
        return f"Checkpoints in {self._folder.checkpoints} are from before: {changes}, and continue with {flag('resume')} auto"

"""Reports a run's saves, and counts failures in a row."""

from pathlib import Path

from megatape.reliability.goodput.process_clock import ProcessClock
from megatape.reliability.run_log import RunLog
from megatape.run_folder import named_step

# A run ends after this many saves in a row have failed.
MAX_CONSECUTIVE_FAILED_SAVES = 3


class SaveReport:
    """Report about saves in the run log.

    Args:
        log: Run log.
        clock: Clock of this process.
        interval: Steps from one save to the next (checkpoint.interval).
    """

    def __init__(self, log: RunLog, clock: ProcessClock, interval: int) -> None:
        self._log = log
        self._clock = clock
        self._interval = interval
        # Saves that have failed since the last success.
        self._num_failures = 0

    def succeeded(self, checkpoint: Path, waited: float) -> None:
        """Report a new checkpoint.

        Args:
            checkpoint: Checkpoint folder.
            waited: Seconds that training waited for the save.
        """
        self._num_failures = 0
        self._log.info(f"checkpoint {checkpoint}; training waited {waited:.3f} s")
        step = named_step(checkpoint)
        # While a checkpoint was written in the background, training has made further steps.
        unsaved = round(self._clock.new_seconds_after(step), 3)
        detail = f"{checkpoint.name}, training waited {waited:.3f} s"
        self._log.record("checkpoint", detail, saved_step=step, unsaved_seconds=unsaved)

    def failed(self, error: OSError) -> bool:
        """Report a failed save. Returns whether there were too many, so that the last attempts follow."""
        self._num_failures += 1
        is_last = self._num_failures == MAX_CONSECUTIVE_FAILED_SAVES
        outlook = f"the next is after {self._interval} steps"
        if is_last:
            outlook = "the last attempts are now"
        self._log.record("save failed", str(error))
        self._log.warning(
            f"{error} (failure {self._num_failures} in a row, {MAX_CONSECUTIVE_FAILED_SAVES} end the run); {outlook}"
        )
        return is_last

"""Returns a run to a checkpoint after a spike."""

from collections.abc import Callable
from functools import partial

from megatape.checkpoint.manager import CheckpointManager
from megatape.checkpoint.reader import CheckpointReader
from megatape.reliability.run_log import RunLog
from megatape.reliability.watch.pace import Pace
from megatape.training.state import TrainState
from megatape.training.steps.spike_policy import SpikePolicy


class Rollbacks:
    """Rolls a run back to its newest valid stable checkpoint. Collective, like its method.

    Args:
        policy: Spike policy, which selects stable checkpoints and remembers the samples to skip.
        checkpoints: Checkpoints of the run.
        restore: Restores weights and state from a checkpoint.
        pace: Receives the phases of this rank, for the watch over the ranks.
        log: Log of the run.
    """

    def __init__(
        self,
        policy: SpikePolicy,
        checkpoints: CheckpointManager,
        restore: Callable[[CheckpointReader], None],
        pace: Pace,
        log: RunLog,
    ) -> None:
        self._policy = policy
        self._checkpoints = checkpoints
        self._restore = restore
        self._pace = pace
        self._log = log

    def roll_back(self, state: TrainState) -> str:
        """Restore the newest valid stable checkpoint, and skip the samples of the steps since.

        Args:
            state: Progress of the run, which `restore` sets back.

        Returns:
            A description of the rollback, or "" if the run continues instead: no checkpoint is stable, or the run has only just
            gone back.
        """
        samples = state.samples
        if not self._policy.may_roll_back(samples):
            self._refuse("the run has only just gone back")
            return ""
        reader = self._checkpoints.roll_back(partial(self._policy.stable_checkpoints, step=state.step))
        if reader is None:
            self._refuse("there is no checkpoint to go back to")
            return ""
        with self._pace.waiting("the return to a checkpoint"):
            self._restore(reader)
        self._policy.roll_back(reader.state.guard, range(reader.samples, samples))
        first, last = self._policy.rolled_back[-1]
        return f"to {reader.directory}; samples {first} to {last} will be skipped"

    def _refuse(self, reason: str) -> None:
        self._log.warning(f"{reason}: the run continues without the step")

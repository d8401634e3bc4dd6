"""Writes a run's checkpoints, and removes those that they replace."""

from pathlib import Path

from megatape.checkpoint.format.rng import rng_snapshot
from megatape.checkpoint.format.stored_weights import StoredWeights
from megatape.checkpoint.interfaces import SavedRun
from megatape.checkpoint.save.contents import CheckpointContents
from megatape.checkpoint.save.pruning import prune
from megatape.checkpoint.save.writer import write_checkpoint
from megatape.run_environment import RunEnvironment
from megatape.zero.state.interfaces import TensorSource


class RunWriter:
    """Writer of a run's checkpoints.

    Args:
        environment: Run environment.
        run: The run's state besides weights and optimizer state.
        keep: Checkpoints to keep, newest first (checkpoint.keep).
    """

    def __init__(self, environment: RunEnvironment, run: SavedRun, keep: int) -> None:
        self._environment = environment
        self._run = run
        self._keep = keep

    def capture(self, tensors: TensorSource, base: StoredWeights | None) -> CheckpointContents:
        """Return the run's present state, which later steps do not change if they don't change the tensors.

        Args:
            tensors: Present weights and optimizer state.
            base: Frozen weights to leave out, or None to write all weights.
        """
        self._environment.log.sync_metrics()
        return CheckpointContents(self._run.saved_state(), tensors, rng_snapshot(), self._run.tokenizer, base)

    def write(self, contents: CheckpointContents) -> Path:
        """Write a checkpoint and remove old ones. Collective. Raises the errors of `write_checkpoint`."""
        environment = self._environment
        checkpoint = write_checkpoint(environment, contents)
        if environment.topology.is_main:
            try:
                environment.folder.mark_latest(checkpoint)
                prune(environment, checkpoint, self._keep, self._run.protected)
            except OSError as error:
                # The new checkpoint is complete nevertheless.
                environment.log.warning(f"after writing {checkpoint}: {error}")
        return checkpoint

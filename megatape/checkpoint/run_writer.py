"""Writes a run's checkpoints, and removes those that they replace."""

from collections.abc import Callable
from pathlib import Path

from megatape.checkpoint.contents import CheckpointContents
from megatape.checkpoint.interfaces import SavedRun
from megatape.checkpoint.pruning import prune
from megatape.checkpoint.rng import rng_snapshot
from megatape.checkpoint.tensors import StoredWeights
from megatape.checkpoint.writer import write_checkpoint
from megatape.run_environment import RunEnvironment
from megatape.zero.tensors import TensorSource


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

    def capture(self, tensors: TensorSource, base: StoredWeights | None) -> Callable[[], Path]:
        """Capture the run's present state, so that later steps do not change what is written.

        Args:
            tensors: Present weights and optimizer state.
            base: Frozen weights to leave out, None to write all weights.

        Returns:
            Function that writes the checkpoint and returns its folder. Collective.
        """
        self._environment.log.sync_metrics()
        contents = CheckpointContents(self._run.saved_state(), tensors, rng_snapshot(), self._run.tokenizer, base)
        return lambda: self._write(contents)

    def _write(self, contents: CheckpointContents) -> Path:
        """Write a checkpoint and remove old ones. Raises the errors of `write_checkpoint`."""
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

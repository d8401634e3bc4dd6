"""Interfaces between checkpoints and training."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor

from megatape.checkpoint.format.state import StateFile
from megatape.checkpoint.format.stored_weights import StoredWeights


class SavedState(Protocol):
    """Training state at one step: a checkpoint, or the initial state of a run."""

    @property
    def step(self) -> int:
        """Steps made by the run."""

    @property
    def updates(self) -> int:
        """Updates made by the optimizer: steps that were not skipped."""

    @property
    def base(self) -> StoredWeights | None:
        """Frozen weights that checkpoints leave out, or None if they have all weights."""

    def read(self, kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice) -> Tensor:
        """Read some rows and columns of a tensor (zero/state/interfaces.py)."""


class SaveListener(Protocol):
    """Object notified about saves."""

    def flush(self) -> bool:
        """Write metrics that could not be written before. Returns whether the metrics of all steps are written."""

    def on_checkpoint(self, checkpoint: Path) -> None:
        """Handle a new checkpoint."""


class SavedRun(Protocol):
    """A run's state besides weights and optimizer state, which its engine has."""

    @property
    def step(self) -> int:
        """Present step."""

    @property
    def tokenizer(self) -> Mapping[str, bytes]:
        """Tokenizer file name -> content."""

    @property
    def callbacks(self) -> SaveListener:
        """Object to notify about saves."""

    def saved_state(self) -> StateFile:
        """Return the present state, for state.json."""

    def protected(self, checkpoints: Iterable[int], newest: int) -> Collection[int]:
        """Return which checkpoints, given by their steps, to keep besides the newest ones.

        Args:
            checkpoints: Steps of all checkpoints.
            newest: Step of the newest checkpoint.
        """

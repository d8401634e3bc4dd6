"""Interface to a run's initial weights (training.init_from)."""

from pathlib import Path
from typing import Protocol

from torch import Tensor

from megatape.checkpoint.format.stored_weights import StoredWeights
from megatape.config import ModelConfig


class InitialWeights(Protocol):
    """Model weights that a run can start with, in a folder of any kind.

    Attributes:
        directory: Folder with the weights.
    """

    directory: Path

    @property
    def model(self) -> ModelConfig:
        """Model configuration belonging to the weights."""

    def check_fits(self, model: ModelConfig) -> set[str]:
        """Check that a model can start with these weights.

        Args:
            model: The run's model configuration.

        Returns:
            Names of parameters starting with these weights. The others are initialized as in a new model.

        Raises:
            UserError: The model cannot start with them.
        """

    def read(self, kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice) -> Tensor:
        """Read some rows and columns of a weight (zero/state/interfaces.py)."""

    def stored(self) -> StoredWeights:
        """Return the files and the location of each weight, for the base of checkpoints."""

    def verify(self, share: int = 0, num_shares: int = 1) -> None:
        """Verify the hashes of every `num_shares`-th file, starting with file `share`."""

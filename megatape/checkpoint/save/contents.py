"""Contents for a new checkpoint."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from megatape.checkpoint.format.state import StateFile
from megatape.checkpoint.format.stored_weights import StoredWeights, names_in_base
from megatape.zero.state.interfaces import TensorSource


@dataclass(frozen=True)
class CheckpointContents:
    """Contents for a new checkpoint.

    Attributes:
        state: Content for state.json.
        tensors: Master weights and optimizer state.
        rng: This rank's generator state (checkpoint/format/rng.py).
        tokenizer: Tokenizer file name -> content.
        base: Frozen weights to leave out, or None to write all weights.
    """

    state: StateFile
    tensors: TensorSource
    rng: Tensor
    tokenizer: Mapping[str, bytes]
    base: StoredWeights | None = None

    @property
    def left_out(self) -> Collection[str]:
        """Parameters to leave out."""
        return names_in_base(self.base)

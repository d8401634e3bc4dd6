"""Contents of a checkpoint to be written."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from megatape.checkpoint.state import State
from megatape.checkpoint.tensors import StoredWeights
from megatape.zero.tensors import TensorSource


@dataclass(frozen=True)
class CheckpointContents:
    """Contents of a checkpoint.

    Attributes:
        state: Content of state.json.
        tensors: Master weights and optimizer state.
        rng: Generator state of this rank (checkpoint/rng.py).
        tokenizer: Name -> content of the tokenizer files.
        base: Frozen weights to leave out, None to write all weights.
    """

    state: State
    tensors: TensorSource
    rng: Tensor
    tokenizer: Mapping[str, bytes]
    base: StoredWeights | None = None

    @property
    def left_out(self) -> Collection[str]:
        """Names of the parameters to leave out."""
        if self.base is None:
            return ()
        return self.base.tensors

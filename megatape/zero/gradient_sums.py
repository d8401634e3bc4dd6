"""Sums over the gradients of a step."""

from typing import Any, NamedTuple

# A number, or a tensor without dimensions on the engine's device.
Scalar = Any


class GradientSums(NamedTuple):
    """Sums over the accumulated gradients of a step that an update needs: this rank's part, or the sums over all ranks.

    Attributes:
        loss: Summed loss over the step's targets, nats.
        num_nonfinite: Number of ranks with a non-finite gradient, among the gradients that tensor-parallel ranks share.
        squared_norm: Squared gradient norm at ZeRO stage 0; 0 at other stages, where DeepSpeed computes the norm.
    """

    loss: Scalar = 0.0
    num_nonfinite: Scalar = 0.0
    squared_norm: Scalar = 0.0

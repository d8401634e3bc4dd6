"""Result of a step's forward and backward passes."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from megatape.zero.passes.stopwatch import Stopwatch

# A number, or a tensor without dimensions on the engine's device.
Scalar = Any


class GradientSums(NamedTuple):
    """Sums over a step's accumulated gradients, on this rank or over all ranks. `Engine.update` needs the latter.

    Attributes:
        loss: Summed loss over the step's targets, nats.
        num_nonfinite: Ranks with a non-finite gradient, among gradients shared by tensor-parallel ranks.
        squared_norm: Squared gradient norm at ZeRO stage 0; 0 at other stages, where DeepSpeed computes the norm.
        num_changed: Weights and tensors of optimizer state that have changed since the last update.
    """

    loss: Scalar = 0.0
    num_nonfinite: Scalar = 0.0
    squared_norm: Scalar = 0.0
    num_changed: Scalar = 0.0


@dataclass(frozen=True)
class PassResult:
    """Result of a step's forward and backward passes on one rank.

    Attributes:
        sums: This rank's sums, tensors on the device.
        forward_stopwatch: Stopwatch around the forward passes. Read it only after the device has finished them.
    """

    sums: GradientSums
    forward_stopwatch: Stopwatch

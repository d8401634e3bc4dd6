"""Result of a step's forward and backward passes."""

from dataclasses import dataclass

from megatape.zero.gradient_sums import GradientSums
from megatape.zero.stopwatch import Stopwatch


@dataclass(frozen=True)
class PassResult:
    """Result of a step's forward and backward passes on one rank.

    Attributes:
        sums: This rank's sums, tensors on the device.
        forward: Stopwatch around the forward passes. Read it only after the device has finished them.
    """

    sums: GradientSums
    forward: Stopwatch

"""Result of the forward and backward passes of a step."""

from dataclasses import dataclass

from megatape.zero.gradient_sums import GradientSums
from megatape.zero.stopwatch import Stopwatch


@dataclass(frozen=True)
class PassResult:
    """Result of the forward and backward passes of a step on one rank.

    Attributes:
        sums: This rank's part of the sums, tensors on the device.
        forward: Stopwatch around the forward passes. Read it only after the device has finished them.
    """

    sums: GradientSums
    forward: Stopwatch

"""Element counts, and bytes per element of the training state."""

from collections.abc import Iterable

from torch import nn

from megatape.utils.rounding import round_up

GRADIENT_BYTES = 4  # Gradients are summed over micro-batches and ranks in float32, whatever the precision.
STATE_BYTES = 4  # Master weights, optimizer state and the moving average are in float32.


def elements(parameters: Iterable[nn.Parameter], multiple: int = 1) -> int:
    """Count the elements of parameters, padding each to a multiple."""
    return sum(round_up(parameter.numel(), multiple) for parameter in parameters)

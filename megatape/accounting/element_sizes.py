"""Numbers of elements, and bytes of an element in the training state."""

from collections.abc import Iterable

from torch import nn

GRADIENT_BYTES = 4  # Gradients are summed over micro-batches and ranks in float32, whatever the precision.
STATE_BYTES = 4  # Master weights, optimizer state and the moving average are in float32.


def elements(parameters: Iterable[nn.Parameter], multiple: int = 1) -> int:
    """Return the number of elements of parameters, each padded to a multiple."""
    return sum(-(-parameter.numel() // multiple) * multiple for parameter in parameters)

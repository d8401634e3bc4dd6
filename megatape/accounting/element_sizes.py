"""Element counts, and bytes per element of the training state."""

from collections.abc import Iterable

from torch import nn

from megatape.utils.values.rounding import round_up

# Bytes per element of gradients, which are summed over micro-batches and ranks in float32, whatever the precision.
GRADIENT_BYTES = 4
# Bytes per element of master weights, optimizer state and moving average, which are in float32.
STATE_BYTES = 4


def elements(parameters: Iterable[nn.Parameter], multiple: int = 1) -> int:
    """Count the elements of parameters, padding each to a multiple."""
    return sum(round_up(parameter.numel(), multiple) for parameter in parameters)

"""Which targets take part in the loss: every token's next one, save those that the data marks with IGNORE_INDEX."""

from typing import Any

IGNORE_INDEX = -100  # as in torch.nn.functional.cross_entropy


def counted(targets: Any) -> Any:
    """Which targets (an array or a tensor of ids) take part in the loss, as booleans of the same kind and shape."""
    return targets != IGNORE_INDEX

"""Targets of the loss: each token's next token, or IGNORE_INDEX if the data excludes it from the loss."""

from typing import Any

# The default of torch.nn.functional.cross_entropy.
IGNORE_INDEX = -100


def target_mask(targets: Any) -> Any:
    """Return which targets count in the loss.

    Args:
        targets: Array or tensor of token ids.

    Returns:
        Booleans of the same shape, as an array or a tensor.
    """
    return targets != IGNORE_INDEX

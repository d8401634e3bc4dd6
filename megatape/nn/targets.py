"""Targets of the loss: the next token of each token, unless the data marks it with IGNORE_INDEX."""

from typing import TYPE_CHECKING, Any

from megatape.moved_modules import old_names

# Default of torch.nn.functional.cross_entropy.
IGNORE_INDEX = -100


def target_mask(targets: Any) -> Any:
    """Return which targets count in the loss.

    Args:
        targets: Array or tensor of token ids.

    Returns:
        Booleans of the same shape, as an array or a tensor.
    """
    return targets != IGNORE_INDEX


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

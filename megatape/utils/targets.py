"""Targets of the loss: the next token of each token, unless the data marks it with IGNORE_INDEX."""

from typing import Any

# Default of torch.nn.functional.cross_entropy.
IGNORE_INDEX = -100
# Key in the `source` of a data directory. If it is true, models read the end token in place of each answer.
HIDES_ANSWERS = "hides_answers"


def target_mask(targets: Any) -> Any:
    """Return which targets count in the loss.

    Args:
        targets: Array or tensor of token ids.

    Returns:
        Booleans of the same shape, as an array or a tensor.
    """
    return targets != IGNORE_INDEX

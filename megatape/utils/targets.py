"""Which targets count in the loss: the next token of each token, unless the data marks it with IGNORE_INDEX."""

from typing import Any

IGNORE_INDEX = -100  # as in torch.nn.functional.cross_entropy
HIDES_ANSWERS = "hides_answers"  # of a data directory's source: models read the end token in place of each answer


def target_mask(targets: Any) -> Any:
    """Whether each target of an array or a tensor counts in the loss, as booleans of the same kind and shape."""
    return targets != IGNORE_INDEX

"""Loss by position on the validation split, up to several times the trained length, for studies measuring their runs."""

from itertools import pairwise
from pathlib import Path

import numpy as np

from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.selection import NEW_SELECTION, Selection
from megatape.lab.tasks.engine.model import EvaluationModel
from megatape.lab.tasks.perplexity.losses import window_losses
from megatape.lab.tasks.perplexity.validation import validation_windows
from megatape.lab.tasks.perplexity.windows import batched

# Last position, relative to the trained length.
MAX_MULTIPLE = 8
# Number of ranges within the trained length, each ending at twice the position of the one before.
NUM_TRAINED_RANGES = 3


def longest_window(data: Path, trained_length: int, max_positions: int) -> int:
    """Return the trained length times the largest power of two, up to MAX_MULTIPLE, that model and validation split allow.

    Args:
        data: Data directory.
        trained_length: Tokens of a training sample.
        max_positions: Value of model.max_positions.
    """
    num_tokens = StoredSplit(data, "validation").num_tokens
    longest = trained_length
    # A window also needs the token that its last one predicts.
    while longest < MAX_MULTIPLE * trained_length and 2 * longest <= max_positions and 2 * longest < num_tokens:
        longest *= 2
    return longest


def evaluate_by_position(
    model: EvaluationModel, data: Path, trained_length: int, longest: int, selection: Selection = NEW_SELECTION
) -> dict[str, float]:
    """Compute the loss by position on the validation split, in disjoint windows.

    The position of a prediction is the number of tokens before it in its window. Ranges end at the trained length times powers
    of two. All windows together have up to 32,768 tokens.

    Args:
        model: Model to evaluate.
        data: Data directory.
        trained_length: Tokens of a training sample.
        longest: Window length, the trained length times a power of two.
        selection: Rule for selecting windows from the split.

    Returns:
        Mean loss (nats) by range of positions, such as "65-128".

    Raises:
        UserError: The split is shorter than a window.
    """
    sums = np.zeros(longest)
    num_windows = 0
    for batch in batched(validation_windows(data, longest, longest, selection)):
        for losses in window_losses(model, batch):
            sums += losses
            num_windows += 1
    means = sums / num_windows
    by_range = {}
    for begin, end in pairwise(_range_boundaries(trained_length, longest)):
        by_range[f"{begin + 1}-{end}"] = float(means[begin:end].mean())
    return by_range


def _range_boundaries(trained_length: int, longest: int) -> list[int]:
    """Return the boundaries of the ranges: 0, followed by the last position of each range."""
    ends = [longest]
    shortest = trained_length >> (NUM_TRAINED_RANGES - 1)
    while ends[0] > shortest and ends[0] > 1:
        ends.insert(0, ends[0] // 2)
    return [0, *ends]

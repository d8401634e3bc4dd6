"""The positions of the tokens of a sample: a function of the seed and of the number of samples before it."""

from dataclasses import dataclass

import numpy as np
import torch

from megatape.data.training.order import sample_hash
from megatape.errors import UserError


@dataclass(frozen=True)
class Positions:
    """The positions of the tokens of a sample or, with document masks, of each document in it.

    Attributes:
        max_offset: Training samples start at a random position in 0 .. max_offset, evaluation at 0.
        drawn_from: If not 0, positions are instead drawn from 0 .. drawn_from - 1 and sorted: anew for each training sample,
            once for each seed and length in evaluation.
    """

    max_offset: int = 0
    drawn_from: int = 0

    def training(self, length: int, seed: int, consumed: int) -> np.ndarray:
        """Positions of the training sample after `consumed` others, int64 [length]."""
        if self.drawn_from:
            return sorted_draw(length, self.drawn_from, sample_hash(seed, consumed, 2**32))
        first = sample_hash(seed, consumed, self.max_offset + 1) if self.max_offset else 0
        return np.arange(first, first + length)

    def evaluation(self, length: int, seed: int) -> np.ndarray:
        """Positions of evaluation samples, int64 [length]."""
        return sorted_draw(length, self.drawn_from, seed) if self.drawn_from else np.arange(length)


FROM_ZERO = Positions()


def sorted_draw(length: int, drawn_from: int, seed: int) -> np.ndarray:
    """`length` distinct numbers from 0 .. drawn_from - 1 in ascending order. Raises UserError if there are too few."""
    if length > drawn_from:
        raise UserError(
            f"{length} tokens need distinct positions from 0 .. {drawn_from - 1} (2 max_positions): shorten the sequence, "
            "or raise model.max_positions"
        )
    return torch.randperm(drawn_from, generator=torch.Generator().manual_seed(seed))[:length].sort().values.numpy()

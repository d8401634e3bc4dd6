"""Token positions within a sample, depending on the seed and on how many samples precede it."""

from dataclasses import dataclass

import numpy as np
import torch

from megatape.data.training.mixing.order import sample_hash
from megatape.errors import UserError


@dataclass(frozen=True)
class Positions:
    """Token positions in a sample, or with document masking in each of its documents.

    Attributes:
        max_offset: Training samples start at a random position in 0 .. max_offset, evaluation samples at 0.
        drawn_from: If not 0, positions are instead drawn from 0 .. drawn_from - 1 and sorted: anew for each training sample,
            once per seed and length in evaluation.
    """

    max_offset: int = 0
    drawn_from: int = 0

    def training(self, length: int, seed: int, consumed: int) -> np.ndarray:
        """Return the positions in the training sample after `consumed` others, int64 [length]."""
        if self.drawn_from:
            return sorted_draw(length, self.drawn_from, sample_hash(seed, consumed, 2**32))
        first = 0
        if self.max_offset:
            first = sample_hash(seed, consumed, self.max_offset + 1)
        return np.arange(first, first + length)

    def evaluation(self, length: int, seed: int) -> np.ndarray:
        """Return the positions in evaluation samples, int64 [length]."""
        if self.drawn_from:
            return sorted_draw(length, self.drawn_from, seed)
        return np.arange(length)


FROM_ZERO = Positions()


def sorted_draw(length: int, drawn_from: int, seed: int) -> np.ndarray:
    """Draw `length` distinct numbers from 0 .. drawn_from - 1, in ascending order.

    Raises:
        UserError: `drawn_from` is less than `length`.
    """
    if length > drawn_from:
        raise UserError(
            f"{length} tokens need distinct positions from 0 .. {drawn_from - 1} (2 max_positions): shorten the sequence, "
            "or raise model.max_positions"
        )
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(drawn_from, generator=generator)[:length]
    return drawn.sort().values.numpy()

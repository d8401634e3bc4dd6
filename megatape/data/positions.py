"""The positions that the tokens of a sample get: a function of the seed and the sample's place in the run."""

from dataclasses import dataclass

import numpy as np
import torch

from megatape.data.order import sample_hash


@dataclass(frozen=True)
class Positions:
    """Positions of the first, second, ... token of a sample (or, with document masks, of each document in it).

    max_offset: training samples start at a random 0 .. max_offset, evaluation at 0. drawn_from: if not 0, positions are a sorted random
    draw of 0 .. drawn_from - 1 instead: a new one for each training sample, one for each seed and length in evaluation."""

    max_offset: int = 0
    drawn_from: int = 0

    def training(self, length: int, seed: int, place: int) -> np.ndarray:
        """int64 [length], of the sample that comes after `place` others."""
        if self.drawn_from:
            return sorted_draw(length, self.drawn_from, sample_hash(seed, place, 2**32))
        return np.arange(length) + sample_hash(seed, place, self.max_offset + 1)

    def evaluation(self, length: int, seed: int) -> np.ndarray:
        """int64 [length]."""
        return sorted_draw(length, self.drawn_from, seed) if self.drawn_from else np.arange(length)


FROM_ZERO = Positions()


def sorted_draw(length: int, drawn_from: int, seed: int) -> np.ndarray:
    """`length` different numbers of 0 .. drawn_from - 1 in rising order. Raises ValueError if there are not so many."""
    if length > drawn_from:
        raise ValueError(
            f"{length} tokens want different positions of 0 .. {drawn_from - 1} (2 max_positions): shorten the sequence, or raise "
            "model.max_positions"
        )
    return torch.randperm(drawn_from, generator=torch.Generator().manual_seed(seed))[:length].sort().values.numpy()

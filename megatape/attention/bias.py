"""What a position encoding adds to the scores of attention, block by block: an N x N tensor of it never exists.

B batch, N tokens, H query heads of this rank.
"""

from abc import ABC, abstractmethod

import torch.nn.functional as F
from torch import Tensor


class ScoreBias(ABC):
    """Numbers added to the scaled scores of pairs of tokens, in float32.

    weights: what they are differentiable by."""

    weights: tuple[Tensor, ...]

    @abstractmethod
    def block(self, weights: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        """The numbers of the queries in `rows` and keys in `columns` as a function of `weights`, [B or 1, H, rows, columns].

        Those of keys behind their query are masked afterwards and may be anything finite."""


class DistanceBias(ScoreBias):
    """One number for each head and each distance of a key before its query."""

    def __init__(self, by_distance: Tensor) -> None:
        """by_distance: [H, N], for the distances 0 .. N - 1."""
        self.weights = (by_distance,)

    def block(self, weights: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        """The same along each diagonal: row r is a window on the reversed numbers that starts one step before that of row r - 1."""
        (by_distance,) = weights
        nearest = rows.start - (columns.stop - 1)  # distance of the last key from the first query; negative ones are masked
        farthest = rows.stop - 1 - columns.start
        numbers = F.pad(by_distance[:, max(nearest, 0) : farthest + 1], (max(-nearest, 0), 0))
        return numbers.flip(1).unfold(1, columns.stop - columns.start, 1).flip(1)[None]

"""Bias that a position encoding adds to attention scores.

Computing it block by block avoids materializing the bias of all N x N pairs. Shapes as in model/transformer.py, where H is the
number of query heads on this rank.
"""

from abc import ABC, abstractmethod

import torch.nn.functional as F
from torch import Tensor


class ScoreBias(ABC):
    """Float32 bias on the scaled scores of pairs of tokens.

    A compiled block makes it again from its weights, `type(bias)(*bias.weights)`, so a subclass keeps all of its tensors there.

    Attributes:
        weights: Tensors that the bias is computed from, and through which it is differentiable.
    """

    def __init__(self, *weights: Tensor) -> None:
        self.weights = weights

    @abstractmethod
    def block(self, weights: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        """Compute the bias of a block of pairs. If a key comes after the query, any finite value will do: it is masked later.

        Args:
            weights: Tensors to compute the bias from.
            rows: Token indices of the queries. When generating, only the last tokens have queries.
            columns: Token indices of the keys.

        Returns:
            Bias [B or 1, H, rows, columns].
        """


class DistanceBias(ScoreBias):
    """Bias by distance: one number per head and distance from the query back to the key.

    Attributes:
        weights: One tensor [H, N] for distances 0 .. N - 1.
    """

    def block(self, weights: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        """Compute the bias of a block, see ScoreBias.

        The bias is constant along diagonals: row r is a window on the reversed numbers, one step before that of row r - 1.
        """
        (by_distance,) = weights
        num_columns = columns.stop - columns.start
        # Distance between the first query and the last key. Negative distances are masked.
        nearest = rows.start - (columns.stop - 1)
        farthest = rows.stop - 1 - columns.start
        numbers = by_distance[:, max(nearest, 0) : farthest + 1]  # [H, rows + columns - 1], unless some are negative
        if nearest < 0:
            numbers = F.pad(numbers, (-nearest, 0))
        windows = numbers.flip(1).unfold(1, num_columns, 1)  # [H, rows, columns], the last row first
        return windows.flip(1)[None]


class Decay(ScoreBias):
    """Bias c_i - c_j of query i and key j: later tokens make earlier ones count less.

    Attributes:
        weights: One tensor c of all keys' tokens, [B, K, H, 1].
    """

    def block(self, weights: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        """Compute the bias of a block, see ScoreBias."""
        (sums,) = weights
        by_head = sums.transpose(1, 2)  # [B, H, K, 1]
        return (by_head[:, :, rows] - by_head[:, :, columns].mT).float()

"""Bias that a position encoding adds to the attention scores.

It is computed block by block, so the bias of all N x N pairs never exists. Shapes as in model/transformer.py, where
H is the number of query heads of this rank.
"""

from abc import ABC, abstractmethod

import torch.nn.functional as F
from torch import Tensor


class ScoreBias(ABC):
    """Float32 bias on the scaled scores of pairs of tokens.

    Attributes:
        weights: Tensors through which the bias is differentiable.
    """

    def __init__(self, *weights: Tensor) -> None:
        self.weights = weights

    @abstractmethod
    def block(self, weights: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        """Compute the bias of a block of pairs.

        If a key comes after the query, any finite value will do: the score is masked later.

        Args:
            weights: Weights of the bias, of which the result is a function.
            rows: Indices of the queries' tokens in the sample. During generation, queries are those of the last tokens only.
            columns: Indices of the keys' tokens in the sample.

        Returns:
            Bias [B or 1, H, rows, columns].
        """


class DistanceBias(ScoreBias):
    """Bias by distance: a number for each head and each distance from the query back to the key.

    Attributes:
        weights: One tensor [H, N], for the distances 0 .. N - 1.
    """

    def block(self, weights: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        """Compute the bias of a block, see ScoreBias.

        It is constant along each diagonal. Row r is a window on the numbers in reversed order, one step before the window of
        row r - 1.
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

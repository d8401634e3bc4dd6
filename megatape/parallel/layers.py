"""The layers that know of tensor ranks; at T = 1 they are the plain ones.

B batch, N tokens, T tensor ranks. Between sublayers activations hold N/T tokens; inside attention and MLP all N tokens of a share of
the features.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from megatape.parallel.collectives import gather_tokens, own_rows, scatter_sum_tokens
from megatape.parallel.loss import cross_entropy, mask_padding
from megatape.parallel.mesh import SINGLE, Axis
from megatape.parallel.parameters import parameter


class ColumnLinear(nn.Module):
    """y = x W^T without bias, every rank making its share of the outputs. weight: [out_features / T, in_features]."""

    def __init__(self, in_features: int, out_features: int, axis: Axis = SINGLE) -> None:
        super().__init__()
        self.weight = parameter((out_features, in_features), 0, axis)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class RowLinear(nn.Module):
    """y = x W^T without bias from every rank's share of the inputs, [B, N, in_features / T] -> [B, N/T, out_features].

    weight: [out_features, in_features / T]."""

    def __init__(self, in_features: int, out_features: int, axis: Axis = SINGLE) -> None:
        super().__init__()
        self.axis = axis
        self.weight = parameter((out_features, in_features), 1, axis)

    def forward(self, x: Tensor) -> Tensor:
        return scatter_sum_tokens(F.linear(x, self.weight), self.axis)


class VocabularyEmbedding(nn.Module):
    """Rows of a table, [B, N] -> [B, N/T, C]; every rank holds a share of the rows. weight: [ceil(V / T), hidden_size]."""

    def __init__(self, vocab_size: int, hidden_size: int, axis: Axis = SINGLE) -> None:
        super().__init__()
        self.axis = axis
        self.weight = parameter((vocab_size, hidden_size), 0, axis)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.axis.size == 1:
            return F.embedding(tokens, self.weight)
        rows, mine = own_rows(tokens, self.weight.shape[0], self.axis)
        return scatter_sum_tokens(F.embedding(rows, self.weight) * mine[..., None], self.axis)


class VocabularyHead(nn.Module):
    """Logits, and cross entropy without any rank ever holding all logits. weight: [ceil(V / T), hidden_size], or a given one."""

    def __init__(self, vocab_size: int, hidden_size: int, axis: Axis = SINGLE, tied: bool = False) -> None:
        super().__init__()
        self.vocab_size, self.axis = vocab_size, axis
        self.weight = None if tied else parameter((vocab_size, hidden_size), 0, axis)

    def logits(self, x: Tensor, tied: Tensor | None) -> Tensor:
        """[B, N/T, C] -> [B, N, V / T], this rank's share of the vocabulary; padding rows are minus infinity."""
        return mask_padding(F.linear(gather_tokens(x, self.axis), self._weight(tied)), self.vocab_size, self.axis)

    def forward(self, x: Tensor, targets: Tensor | None, tied: Tensor | None) -> Tensor:
        """x: [B, N/T, C]; targets: [B, N] or None. Float32 sum of the targets' cross entropies, the same on all ranks, or logits."""
        if targets is None:
            return self.logits(x, tied)
        return cross_entropy(x, self._weight(tied), targets, self.vocab_size, self.axis)

    def _weight(self, tied: Tensor | None) -> Tensor:
        weight = self.weight if tied is None else tied
        assert weight is not None
        return weight

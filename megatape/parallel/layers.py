"""The layers that know of tensor ranks; at T = 1 they are the plain ones.

B batch, N tokens, T tensor ranks. Between sublayers activations hold N/T tokens; inside attention and MLP all N tokens of a share of
the features. Parameters have no automatic initialization: model/init.py draws each from its own name. A parameter of which a
rank holds a share is tagged the way DeepSpeed expects, `tensor_model_parallel` and `partition_dim`: without the tag the
gradient norm, and with it clipping, is wrong.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatape.parallel.collectives import (
    SINGLE,
    TensorRanks,
    gather_tokens,
    gathered_again,
    own_rows,
    replicated,
    scatter_sum_tokens,
)
from megatape.parallel.loss import cross_entropy, mask_padding


def sharded(shape: tuple[int, ...], axis: int, ranks: TensorRanks) -> nn.Parameter:
    """Uninitialized parameter of which this rank holds an equal share along `axis`; rows beyond a multiple of T are padding.

    shape: of the whole parameter. Its `global_shape` keeps that."""
    local = list(shape)
    local[axis] = -(-shape[axis] // ranks.size)
    parameter = nn.Parameter(torch.empty(local))
    parameter.global_shape = shape  # type: ignore[attr-defined]
    if ranks.size > 1:
        parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
        parameter.partition_dim = axis  # type: ignore[attr-defined]
    return parameter


class ColumnLinear(nn.Module):
    """y = x W^T without bias, every rank making its share of the outputs. weight: [out_features / T, in_features]."""

    def __init__(self, in_features: int, out_features: int, ranks: TensorRanks = SINGLE) -> None:
        super().__init__()
        self.weight = sharded((out_features, in_features), 0, ranks)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class RowLinear(nn.Module):
    """y = x W^T without bias from every rank's share of the inputs, [B, N, in_features / T] -> [B, N/T, out_features].

    weight: [out_features, in_features / T]."""

    def __init__(self, in_features: int, out_features: int, ranks: TensorRanks = SINGLE) -> None:
        super().__init__()
        self.ranks = ranks
        self.weight = sharded((out_features, in_features), 1, ranks)

    def forward(self, x: Tensor) -> Tensor:
        return scatter_sum_tokens(F.linear(x, self.weight), self.ranks)


class VocabularyEmbedding(nn.Module):
    """Rows of a table, [B, N] -> [B, N/T, C]; every rank holds a share of the rows. weight: [ceil(V / T), hidden_size]."""

    def __init__(self, vocab_size: int, hidden_size: int, ranks: TensorRanks = SINGLE) -> None:
        super().__init__()
        self.ranks = ranks
        self.weight = sharded((vocab_size, hidden_size), 0, ranks)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.ranks.size == 1:
            return F.embedding(tokens, self.weight)
        rows, mine = own_rows(tokens, self.weight.shape[0], self.ranks)
        return scatter_sum_tokens(F.embedding(rows, self.weight) * mine[..., None], self.ranks)


class VocabularyHead(nn.Module):
    """Logits, and cross entropy without any rank ever holding all logits. weight: [ceil(V / T), hidden_size], or a given one."""

    def __init__(self, vocab_size: int, hidden_size: int, ranks: TensorRanks = SINGLE, tied: bool = False) -> None:
        super().__init__()
        self.vocab_size, self.ranks = vocab_size, ranks
        self.weight = None if tied else sharded((vocab_size, hidden_size), 0, ranks)

    def logits(self, x: Tensor, tied: Tensor | None) -> Tensor:
        """[B, N/T, C] -> [B, N, V / T], this rank's share of the vocabulary; padding rows are minus infinity."""
        return mask_padding(F.linear(gather_tokens(x, self.ranks), self._weight(tied)), self.vocab_size, self.ranks)

    def forward(self, x: Tensor, targets: Tensor | None, tied: Tensor | None) -> Tensor:
        """x: [B, N/T, C]; targets: [B, N] or None. Float32 sum of the targets' cross entropies, the same on all ranks, or logits."""
        if targets is None:
            return self.logits(x, tied)
        return cross_entropy(x, self._weight(tied), targets, self.vocab_size, self.ranks)

    def _weight(self, tied: Tensor | None) -> Tensor:
        weight = self.weight if tied is None else tied
        assert weight is not None
        return weight


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, computed in float32, returned in the dtype of x. weight: [size], on all ranks."""

    def __init__(self, size: int, eps: float, ranks: TensorRanks = SINGLE) -> None:
        super().__init__()
        self.eps, self.ranks = eps, ranks
        self.weight = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor) -> Tensor:
        weight = replicated(self.weight, self.ranks).float()
        return F.rms_norm(x.float(), weight.shape, weight, self.eps).to(x.dtype)


class MLP(nn.Module):
    """SwiGLU feed-forward, W_down (silu(W_gate h) * W_up h), [B, N/T, C] -> [B, N/T, C]."""

    def __init__(self, hidden_size: int, inner_size: int, ranks: TensorRanks = SINGLE) -> None:
        super().__init__()
        self.ranks = ranks
        self.gate = ColumnLinear(hidden_size, inner_size, ranks)
        self.up = ColumnLinear(hidden_size, inner_size, ranks)
        self.down = RowLinear(inner_size, hidden_size, ranks)
        self.input_weights = [self.gate.weight, self.up.weight]  # held for the same reason as in Attention

    def forward(self, h: Tensor) -> Tensor:
        whole = gather_tokens(h, self.ranks)
        with gathered_again(h, whole, self.input_weights, self.ranks):
            gate, up = self.gate(whole), self.up(whole)
        return self.down(F.silu(gate) * up)

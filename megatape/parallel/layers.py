"""The tensor-parallel layers; at T = 1 they are the plain ones.

B batch, N tokens, C hidden size, V vocabulary, T tensor-parallel ranks. Each rank holds N/T tokens
between sublayers, and all N tokens of its share of the features inside attention and MLP.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from megatape.parallel.collectives import gather_tokens, scatter_sum_tokens
from megatape.parallel.layout import own_rows
from megatape.parallel.lora import ColumnAdapter, RowAdapter
from megatape.parallel.loss import cross_entropy, mask_padding
from megatape.parallel.mesh import SINGLE, Axis
from megatape.parallel.overlap import Exchange, Gathering, begin_gather
from megatape.parallel.parameters import parameter
from megatape.parallel.recompute import recomputed


class ColumnLinear(nn.Module):
    """y = x W^T (+ b), where each rank computes its share of the outputs; called through `column_parallel`.

    weight: [out_features / T, in_features]; bias: [out_features / T] or None. adapter: set by model/lora.py."""

    def __init__(self, in_features: int, out_features: int, axis: Axis = SINGLE, bias: bool = False) -> None:
        super().__init__()
        self.axis, self.in_features, self.out_features = axis, in_features, out_features
        self.adapter: ColumnAdapter | None = None
        self.weight = parameter((out_features, in_features), axis, 0)
        self.bias = parameter((out_features,), axis, 0, init=0.0) if bias else None

    def forward(
        self,
        whole: Tensor,
        *,
        part: Tensor | None = None,
        gathering: Gathering | None = None,
        again: "_GatherAgain | None" = None,
    ) -> Tensor:
        """whole: [B, N, in_features]. If `gathering` still completes it, only this rank's `part` of it is kept, and the
        backward pass gathers the whole by `again`."""
        if gathering is None:
            return F.linear(whole, self.weight, self.bias)
        out: Tensor = _GatheredLinear.apply(whole, self.weight, part, gathering, again)
        return out if self.bias is None else out + self.bias


def column_parallel(
    x: Tensor, *layers: ColumnLinear, dropout_seeds: Tensor | None = None, beside: Exchange | None = None
) -> list[Tensor]:
    """The outputs of several layers on the same input, for all tokens: [B, N/T, C] -> [B, N, out_features / T] each.

    dropout_seeds: of adapters. beside: an exchange that begins here, to run beside the products. The input is gathered once for
    all layers. Each rank keeps only its part, and the backward pass gathers the whole again, once."""
    axis = layers[0].axis
    if axis.size == 1:
        whole, gathering = x, None
    else:
        whole, gathering = begin_gather(x, axis)
    if beside is not None:
        beside.begin()
    if gathering is None:
        outputs = [layer(whole) for layer in layers]
    elif recomputed():
        gathering.wait()
        outputs = [layer(whole) for layer in layers]
    else:
        part, again = x.detach(), _GatherAgain(axis, sum(layer.weight.requires_grad for layer in layers))
        # By keyword, because ZeRO stage 3 wraps the positional inputs of a layer in hooks.
        outputs = [layer(whole, part=part, gathering=gathering, again=again) for layer in layers]
    return [
        out if layer.adapter is None else out + layer.adapter(x, dropout_seeds)
        for out, layer in zip(outputs, layers, strict=True)
    ]


class _GatherAgain:
    """Gathers an input again for the backward passes of `uses` layers, and releases it after the last one."""

    def __init__(self, axis: Axis, uses: int) -> None:
        self.axis, self.uses = axis, uses
        self.left = 0
        self.gathering: Gathering | None = None

    def begin(self, part: Tensor) -> None:
        """Begin, if no layer has."""
        if self.gathering is None:
            self.gathering, self.left = Gathering(part, self.axis), self.uses

    def finish(self) -> Tensor:
        """The whole, for one of the layers."""
        assert self.gathering is not None
        whole = self.gathering.wait()
        self.left -= 1
        if not self.left:
            self.gathering = None
        return whole


class _GatheredLinear(torch.autograd.Function):
    """F.linear of an input that is still arriving. Saves a part of it unless the weight is frozen, and the weight itself,
    because ZeRO stage 3 frees and refills its storage."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, weight: Tensor, part: Tensor, gathering: Gathering, again: _GatherAgain) -> Tensor:
        ctx.again = again
        ctx.save_for_backward(part if weight.requires_grad else None, weight)
        out = whole.new_empty(*whole.shape[:-1], len(weight))
        for rows in gathering.rows():
            torch.mm(whole[rows].flatten(0, 1), weight.T, out=out[rows].flatten(0, 1))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        part, weight = ctx.saved_tensors
        if part is None:
            return grad @ weight, None, None, None, None
        ctx.again.begin(part)  # runs beside the product for the input
        grad_whole = grad @ weight
        return grad_whole, grad.flatten(0, 1).T @ ctx.again.finish().flatten(0, 1), None, None, None


class RowLinear(nn.Module):
    """y = x W^T (+ b), where each rank holds a share of the inputs: [B, N, in_features / T]
    -> [B, N/T, out_features].

    weight: [out_features, in_features / T]; bias: [out_features] or None, which a rank adds to its own tokens.
    adapter: set by model/lora.py."""

    def __init__(self, in_features: int, out_features: int, axis: Axis = SINGLE, bias: bool = False) -> None:
        super().__init__()
        self.axis, self.in_features, self.out_features = axis, in_features, out_features
        self.adapter: RowAdapter | None = None
        self.weight = parameter((out_features, in_features), axis, 1)
        self.bias = parameter((out_features,), axis, init=0.0) if bias else None

    def forward(self, x: Tensor, dropout_seeds: Tensor | None = None) -> Tensor:
        """dropout_seeds: of the adapter."""
        out = scatter_sum_tokens(F.linear(x, self.weight), self.axis)
        if self.adapter is not None:
            out = out + self.adapter(x, dropout_seeds)
        return out if self.bias is None else out + self.bias


class VocabularyEmbedding(nn.Module):
    """Token embedding, [B, N] -> [B, N/T, C], whose rows the ranks divide. weight: [ceil(V / T), C]."""

    def __init__(self, vocab_size: int, hidden_size: int, axis: Axis = SINGLE) -> None:
        super().__init__()
        self.axis = axis
        self.weight = parameter((vocab_size, hidden_size), axis, 0)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.axis.size == 1:
            return F.embedding(tokens, self.weight)
        rows, held = own_rows(tokens, self.weight.shape[0], self.axis)
        return scatter_sum_tokens(F.embedding(rows, self.weight) * held[..., None], self.axis)


class VocabularyHead(nn.Module):
    """The output matrix, whose rows the ranks divide: logits, or the loss without ever holding all logits.

    weight: [ceil(V / T), C]; None if tied, when callers pass the embedding's."""

    def __init__(self, vocab_size: int, hidden_size: int, axis: Axis = SINGLE, tied: bool = False) -> None:
        super().__init__()
        self.vocab_size, self.axis = vocab_size, axis
        self.weight = None if tied else parameter((vocab_size, hidden_size), axis, 0)

    def logits(self, x: Tensor, tied: Tensor | None) -> Tensor:
        """[B, N/T, C] -> [B, N, ceil(V / T)], this rank's share of the vocabulary; logits of
        padding rows are minus infinity."""
        return mask_padding(F.linear(gather_tokens(x, self.axis), self._weight(tied)), self.vocab_size, self.axis)

    def forward(self, x: Tensor, targets: Tensor | None, tied: Tensor | None) -> Tensor:
        """x: [B, N/T, C]; targets: [B, N]. Returns the float32 sum of their cross entropies, the same on all ranks.

        Without targets, returns the logits."""
        if targets is None:
            return self.logits(x, tied)
        return cross_entropy(x, self._weight(tied), targets, self.vocab_size, self.axis)

    def _weight(self, tied: Tensor | None) -> Tensor:
        weight = self.weight if tied is None else tied
        assert weight is not None
        return weight

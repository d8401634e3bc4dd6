"""The tensor-parallel layers; at T = 1 they are the plain ones.

B batch, N tokens, C hidden size, V vocabulary, T tensor-parallel ranks. Each rank holds N/T tokens
between sublayers, and all N tokens of its share of the features inside attention and MLP.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from megatape.parallel.collectives import gather_tokens, scatter_sum_tokens
from megatape.parallel.fp8 import Product
from megatape.parallel.layout import own_rows
from megatape.parallel.lora import ColumnAdapter, RowAdapter
from megatape.parallel.loss import cross_entropy, mask_padding
from megatape.parallel.mesh import SINGLE, Axis
from megatape.parallel.overlap import Exchange, Gathering, begin_gather
from megatape.parallel.parameters import parameter
from megatape.parallel.recompute import Origin, recomputed


class ColumnLinear(nn.Module):
    """y = x W^T (+ b), where each rank computes its share of the outputs; called through `column_parallel`.

    weight: [out_features / T, in_features]; bias: [out_features / T] or None. adapter: set by model/lora.py. fp8: the product
    in training, at T = 1, set by model/fp8.py."""

    def __init__(self, in_features: int, out_features: int, axis: Axis = SINGLE, bias: bool = False) -> None:
        super().__init__()
        self.axis, self.in_features, self.out_features = axis, in_features, out_features
        self.adapter: ColumnAdapter | None = None
        self.fp8: Product | None = None
        self.weight = parameter((out_features, in_features), axis, 0)
        self.bias = parameter((out_features,), axis, 0, init=0.0) if bias else None

    def forward(
        self,
        whole: Tensor,
        *,
        gathering: Gathering | None = None,
        again: "_Again | None" = None,
        kept: tuple[Tensor, ...] = (),
    ) -> Tensor:
        """whole: [B, N, in_features], which `gathering` may still complete. With `again` not it but `kept` is kept, from which
        the backward pass makes it again."""
        if self.fp8 is not None and self.training:
            product = _fp8_linear(self.fp8, whole, self.weight, again, kept)
            return product if self.bias is None else product + self.bias
        if again is None:
            return F.linear(whole, self.weight, self.bias)
        out: Tensor = _Linear.apply(whole, self.weight, self.bias, gathering, again, *kept)
        return out


def column_parallel(
    x: Tensor,
    *layers: ColumnLinear,
    dropout_seeds: Tensor | None = None,
    beside: Exchange | None = None,
    origin: Origin | None = None,
) -> list[Tensor]:
    """The outputs of several layers on the same input, for all tokens: [B, N/T, C] -> [B, N, out_features / T] each.

    dropout_seeds: of adapters. beside: an exchange that begins here, to run beside the products. origin: of x, which is then
    not kept, except by adapters. The input is gathered once for all layers. Each rank keeps only its part, and the backward
    pass gathers the whole again, once."""
    axis = layers[0].axis
    if axis.size == 1:
        whole, gathering = x, None
    else:
        whole, gathering = begin_gather(x, axis)
    if beside is not None:
        beside.begin()
    if gathering is not None and recomputed():
        gathering.wait()
        outputs = [layer(whole) for layer in layers]
    elif gathering is None and origin is None:
        outputs = [layer(whole) for layer in layers]
    else:
        origin = origin or Origin(lambda part: part, (x.detach(),))
        again = _Again(origin.function, axis, sum(layer.weight.requires_grad for layer in layers))
        # By keyword, because ZeRO stage 3 wraps the positional inputs of a layer in hooks.
        outputs = [layer(whole, gathering=gathering, again=again, kept=origin.args) for layer in layers]
    return [
        out if layer.adapter is None else out + layer.adapter(x, dropout_seeds)
        for out, layer in zip(outputs, layers, strict=True)
    ]


class _Again:
    """Makes an input again for the backward passes of `uses` layers, and releases it after the last one.

    function: computes this rank's part of it from what the layers keep."""

    def __init__(self, function: Callable[..., Tensor], axis: Axis, uses: int = 1) -> None:
        self.function, self.axis, self.uses = function, axis, uses
        self.left = 0
        self.wait: Callable[[], Tensor] | None = None

    def begin(self, kept: Iterable[Tensor]) -> None:
        """Compute this rank's part and begin to gather the whole, if no layer has."""
        if self.wait is None:
            part, self.left = self.function(*kept), self.uses
            self.wait = (lambda: part) if self.axis.size == 1 else Gathering(part, self.axis).wait

    def finish(self) -> Tensor:
        """The whole, for one of the layers."""
        assert self.wait is not None
        whole = self.wait()
        self.left -= 1
        if not self.left:
            self.wait = None
        return whole


class _Linear(torch.autograd.Function):
    """F.linear of an input that may still be arriving, and is not kept. Saves `kept`, from which it is made again, unless the
    weight is frozen, and the weight itself, because ZeRO stage 3 frees and refills its storage."""

    @staticmethod
    def forward(
        ctx: Any, whole: Tensor, weight: Tensor, bias: Tensor | None, gathering: Gathering | None, again: _Again, *kept: Tensor
    ) -> Tensor:
        ctx.again = again
        ctx.save_for_backward(weight, *(kept if weight.requires_grad else ()))
        if gathering is None:
            return F.linear(whole, weight, bias)
        out = whole.new_empty(*whole.shape[:-1], len(weight))
        for rows in gathering.rows():
            torch.mm(whole[rows].flatten(0, 1), weight.T, out=out[rows].flatten(0, 1))
        return out if bias is None else out.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, *kept = ctx.saved_tensors
        needs_weight, needs_bias = ctx.needs_input_grad[1:3]
        if needs_weight:
            ctx.again.begin(kept)  # what it gathers arrives beside the product for the input
        grad_whole = grad @ weight
        grad_weight = grad.flatten(0, 1).T @ ctx.again.finish().flatten(0, 1) if needs_weight else None
        grad_bias = grad.sum((0, 1)) if needs_bias else None
        return grad_whole, grad_weight, grad_bias, *[None] * (len(ctx.needs_input_grad) - 3)


def _fp8_linear(multiply: Product, x: Tensor, weight: Tensor, again: _Again | None, kept: tuple[Tensor, ...]) -> Tensor:
    """x W^T in FP8. With `again`, autograd keeps `kept` in the place of x."""
    if again is None:
        return multiply(x, weight)
    own = x.untyped_storage()._cdata

    def pack(saved: Tensor) -> Tensor | None:
        return None if saved.untyped_storage()._cdata == own else saved

    def unpack(saved: Tensor | None) -> Tensor:
        if saved is not None:
            return saved
        again.begin(kept)
        return again.finish()

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return multiply(x, weight)


class RowLinear(nn.Module):
    """y = x W^T (+ b), where each rank holds a share of the inputs: [B, N, in_features / T]
    -> [B, N/T, out_features].

    weight: [out_features, in_features / T]; bias: [out_features] or None, which a rank adds to its own tokens.
    adapter, fp8: as ColumnLinear has them."""

    def __init__(self, in_features: int, out_features: int, axis: Axis = SINGLE, bias: bool = False) -> None:
        super().__init__()
        self.axis, self.in_features, self.out_features = axis, in_features, out_features
        self.adapter: RowAdapter | None = None
        self.fp8: Product | None = None
        self.weight = parameter((out_features, in_features), axis, 1)
        self.bias = parameter((out_features,), axis, init=0.0) if bias else None

    def forward(self, x: Tensor, dropout_seeds: Tensor | None = None, *, origin: Origin | None = None) -> Tensor:
        """dropout_seeds: of the adapter. origin: of x, which is then not kept, except by the adapter."""
        again, kept = (None, ()) if origin is None else (_Again(origin.function, SINGLE), origin.args)
        if self.fp8 is not None and self.training:
            product = _fp8_linear(self.fp8, x, self.weight, again, kept)
        elif again is None:
            product = F.linear(x, self.weight)
        else:
            product = _Linear.apply(x, self.weight, None, None, again, *kept)
        out = scatter_sum_tokens(product, self.axis)
        if self.adapter is not None:
            out = out + self.adapter(x, dropout_seeds)
        return out if self.bias is None else out + self.bias


class VocabularyEmbedding(nn.Module):
    """Token embedding, [B, N] -> [B, N/T, C], whose rows the ranks divide. weight: [ceil(V / T), C]."""

    def __init__(self, vocab_size: int, hidden_size: int, axis: Axis = SINGLE) -> None:
        super().__init__()
        self.axis = axis
        self.weight = parameter((vocab_size, hidden_size), axis, 0, role="embedding")

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
        self.weight = None if tied else parameter((vocab_size, hidden_size), axis, 0, role="embedding")

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

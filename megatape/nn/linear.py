"""The tensor-parallel layers; at T = 1 they are the plain ones.

Shapes as in model/transformer.py. Each rank holds N/T tokens between sublayers, and all N tokens of its share of the features
inside attention and MLP.
"""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from megatape.distributed.collectives import gather_tokens, scatter_sum_tokens
from megatape.distributed.layout import own_rows
from megatape.distributed.mesh import SINGLE, Axis
from megatape.nn.gathered_input import GatheredInput
from megatape.nn.loss import LossFormula, cross_entropy, mask_padding, soft_cap
from megatape.nn.parameters import Role, parameter
from megatape.nn.product import Product, linear, linear_and_input
from megatape.nn.remat import Remat


class Linear(nn.Module):
    """y = x W^T (+ b), of which each tensor-parallel rank computes a share.

    Attributes:
        weight: This rank's share of W.
        bias: This rank's share of b, or None.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, axis: Axis, product: Product = linear) -> None:
        super().__init__()
        self.axis = axis
        self.in_features = in_features
        self.out_features = out_features
        self._training_product = product

    def use_product(self, product: Product) -> None:
        """Choose the matrix product of training, plain or FP8. Evaluation takes the plain one."""
        self._training_product = product

    @property
    def product(self) -> Product:
        """The matrix product, in training or in evaluation."""
        return self._training_product if self.training else linear


class ColumnParallel(Linear):
    """Base class of layers whose outputs the ranks divide, [B, N, in_features] -> [B, N, out_features / T].

    weight: [out_features / T, in_features]; bias: [out_features / T] or None.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        axis: Axis = SINGLE,
        bias: bool = False,
        role: Role = "matrix",
        product: Product = linear,
    ) -> None:
        super().__init__(in_features, out_features, axis, product)
        self.weight = parameter((out_features, in_features), axis, 0, role=role)
        self.bias = parameter((out_features,), axis, 0, init=0.0) if bias else None


class ColumnLinear(ColumnParallel):
    """A layer whose outputs the ranks divide, and whose input is a tensor that every rank holds."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for x, the tokens of all ranks."""
        return self.product(x, self.weight, self.bias)


class Projection(NamedTuple):
    """Result of a SharedInputLinear.

    Attributes:
        output: [B, N, out_features / T].
        next_input: The input, as the next layer takes it; None if there is no next layer.
    """

    output: Tensor
    next_input: Tensor | None


class SharedInputLinear(ColumnParallel):
    """One of several layers that multiply the same input, such as those of queries, keys and values."""

    def forward(self, x: Tensor, *, gathered: GatheredInput | None = None, is_last: bool = True) -> Projection:
        """Return the output, and the input for the next layer.

        In the backward pass each layer adds its gradient of the input to that of the next layer as it multiplies.

        Args:
            x: Tokens of all ranks, from the layer before.
            gathered: The input that x is; None if every rank holds x, and autograd saves it.
            is_last: Whether no other layer multiplies x after this one.
        """
        product = self.product
        remat = None if gathered is None else gathered.remat
        if is_last:
            return Projection(product(x, self.weight, self.bias, remat), None)
        if product is linear:
            return Projection(*linear_and_input(x, self.weight, self.bias, remat))
        return Projection(product(x, self.weight, self.bias, remat), x)


def project(gathered: GatheredInput, *layers: SharedInputLinear) -> list[Tensor]:
    """Return the output of each layer for one input."""
    x = gathered.whole
    passed = None
    if gathered.is_gathered or gathered.remat is not None:
        passed = gathered
    outputs = []
    for layer in layers:
        output, x = layer(x, gathered=passed, is_last=layer is layers[-1])
        outputs.append(output)
    return outputs


class RowLinear(Linear):
    """A layer whose inputs the ranks divide, [B, N, in_features / T] -> [B, N/T, out_features].

    weight: [out_features, in_features / T]; bias: [out_features] or None, which a rank adds to its own tokens.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        axis: Axis = SINGLE,
        bias: bool = False,
        product: Product = linear,
    ) -> None:
        super().__init__(in_features, out_features, axis, product)
        self.weight = parameter((out_features, in_features), axis, 1)
        self.bias = parameter((out_features,), axis, init=0.0) if bias else None

    def forward(self, x: Tensor, *, remat: Remat | None = None) -> Tensor:
        """Return the output. remat: How the backward pass rebuilds x; None: autograd saves x."""
        out = self.summed(x, remat)
        return out if self.bias is None else out + self.bias

    def summed(self, x: Tensor, remat: Remat | None) -> Tensor:
        """Return the sum of all ranks' products."""
        return scatter_sum_tokens(self.product(x, self.weight, None, remat), self.axis)


class VocabularyEmbedding(nn.Module):
    """Token embedding, [B, N] -> [B, N/T, D], whose rows the ranks divide. weight: [ceil(V / T), D]."""

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

    Attributes:
        weight: [ceil(V / T), D]; None if tied, when callers pass the embedding's.
        formula: Loss as a function of the logits.
    """

    def __init__(self, hidden_size: int, formula: LossFormula, tied: bool = False) -> None:
        super().__init__()
        self.axis = formula.axis
        self.formula = formula
        self.weight = None
        if not tied:
            self.weight = parameter((formula.vocab_size, hidden_size), self.axis, 0, role="embedding")

    def logits(self, x: Tensor, tied: Tensor | None) -> Tensor:
        """[B, N/T, D] -> [B, N, ceil(V / T)], this rank's share of the vocabulary.

        Logits of padding rows are minus infinity.
        """
        logits = F.linear(gather_tokens(x, self.axis), self._weight(tied))
        if self.formula.softcap is not None:
            logits = soft_cap(logits, self.formula.softcap)
        return mask_padding(logits, self.formula.vocab_size, self.axis)

    def forward(self, x: Tensor, targets: Tensor | None, tied: Tensor | None) -> Tensor:
        """x: [B, N/T, D]; targets: [B, N]. Returns the float32 sum of their cross entropies, the same on all ranks.

        Without targets, returns the logits.
        """
        if targets is None:
            return self.logits(x, tied)
        return cross_entropy(x, self._weight(tied), targets, self.formula)

    def _weight(self, tied: Tensor | None) -> Tensor:
        weight = self.weight if tied is None else tied
        assert weight is not None
        return weight

"""Tensor-parallel linear layers. With a single rank they are plain ones.

Between sublayers, each rank holds N/T tokens with all features. Inside attention and MLP, it holds all N tokens with 1/T of
the features:

    [B, N/T, D]  gather, column-parallel   [B, N, features / T]  row-parallel, reduce-scatter   [B, N/T, D]

Shapes as in model/transformer.py.
"""

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from megatape.distributed.collectives import scatter_sum_tokens
from megatape.distributed.mesh import SINGLE, Axis
from megatape.moved_modules import old_names
from megatape.nn.parameters import Role, parameter
from megatape.nn.product import LinearFunction, linear, linear_and_input
from megatape.nn.remat.gathered_input import GatheredInput
from megatape.nn.remat.remat import Remat


class Linear(nn.Module):
    """Base class of layers y = x W^T (+ b) sharded across tensor-parallel ranks.

    Attributes:
        weight: This rank's shard of W.
        bias: This rank's shard of b, or None.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, axis: Axis, product: LinearFunction = linear) -> None:
        super().__init__()
        self.axis = axis
        self.in_features = in_features
        self.out_features = out_features
        self._training_product = product

    def use_product(self, product: LinearFunction) -> None:
        """Choose the matrix product used in training, plain or FP8. Evaluation always uses the plain one."""
        self._training_product = product

    @property
    def product(self) -> LinearFunction:
        """Matrix product for the current mode, training or evaluation."""
        if self.training:
            return self._training_product
        return linear


class ColumnParallel(Linear):
    """Base class of layers with sharded outputs, [B, N, in_features] -> [B, N, out_features / T].

    Attributes:
        weight: [out_features / T, in_features].
        bias: [out_features / T] or None.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        axis: Axis = SINGLE,
        bias: bool = False,
        role: Role = "matrix",
        product: LinearFunction = linear,
    ) -> None:
        super().__init__(in_features, out_features, axis, product)
        self.weight = parameter((out_features, in_features), axis, 0, role=role)
        self.bias = None
        if bias:
            self.bias = parameter((out_features,), axis, 0, init=0.0)


class ColumnLinear(ColumnParallel):
    """Column-parallel layer whose input every rank already holds. Encodings use it for features by head."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the output [B, N, out_features / T] for the tokens of all ranks, [B, N, in_features]."""
        return self.product(x, self.weight, self.bias)


class Projection(NamedTuple):
    """Result of a SharedInputLinear.

    Attributes:
        output: Output of the layer, [B, N, out_features / T].
        next_input: Input to pass to the next layer; None after the last one.
    """

    output: Tensor
    next_input: Tensor | None


class SharedInputLinear(ColumnParallel):
    """Column-parallel layer that multiplies the same input as others, such as the query, key and value projections."""

    def forward(self, x: Tensor, *, gathered: GatheredInput | None = None, is_last: bool = True) -> Projection:
        """Return the output, and the input for the next layer.

        Passing the input from layer to layer chains their backward passes: each one adds its gradient of the input to that of
        the next layer while multiplying.

        Args:
            x: Tokens of all ranks, from the previous layer, [B, N, in_features].
            gathered: Record of x as an input being gathered; None if every rank holds x and autograd saves it.
            is_last: Whether this is the last layer that multiplies x.
        """
        product = self.product
        remat = None if gathered is None else gathered.remat
        if is_last:
            return Projection(product(x, self.weight, self.bias, remat), None)
        if product is linear:
            return Projection(*linear_and_input(x, self.weight, self.bias, remat))
        return Projection(product(x, self.weight, self.bias, remat), x)


def project(x: Tensor | GatheredInput, *layers: SharedInputLinear) -> list[Tensor]:
    """Return the outputs of several layers for one input.

    Args:
        x: Input of all layers, [B, N, in_features], or a record of it as an input being gathered.
        layers: Layers in the order in which they multiply.

    Returns:
        [B, N, out_features / T] of each layer.
    """
    gathered = None
    if isinstance(x, GatheredInput):
        if x.is_gathered or x.remat is not None:
            gathered = x
        x = x.whole
    outputs = []
    for layer in layers:
        is_last = layer is layers[-1]
        output, x = layer(x, gathered=gathered, is_last=is_last)
        outputs.append(output)
    return outputs


class RowLinear(Linear):
    """Row-parallel layer, with sharded inputs: [B, N, in_features / T] -> [B, N/T, out_features].

    Attributes:
        weight: [out_features, in_features / T].
        bias: [out_features] or None. Each rank adds it to its own tokens.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        axis: Axis = SINGLE,
        bias: bool = False,
        product: LinearFunction = linear,
    ) -> None:
        super().__init__(in_features, out_features, axis, product)
        self.weight = parameter((out_features, in_features), axis, 1)
        self.bias = None
        if bias:
            self.bias = parameter((out_features,), axis, init=0.0)

    def forward(self, x: Tensor, *, remat: Remat | None = None) -> Tensor:
        """Return the output for this rank's tokens.

        Args:
            x: This rank's share of the inputs, [B, N, in_features / T].
            remat: How the backward pass rebuilds x; None: autograd saves x.
        """
        out = self.summed(x, remat)
        if self.bias is None:
            return out
        return out + self.bias

    def summed(self, x: Tensor, remat: Remat | None) -> Tensor:
        """Return the products of all ranks, summed, for this rank's tokens."""
        partial_sums = self.product(x, self.weight, None, remat)
        return scatter_sum_tokens(partial_sums, self.axis)


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

"""Tensor-parallel linear layers. With a single rank they are plain ones.

Between sublayers, each rank holds N/T tokens with all features. Inside attention and MLP, it holds all N tokens with 1/T of
the features:

    [B, N/T, D]  gather, column-parallel   [B, N, features / T]  row-parallel, reduce-scatter   [B, N/T, D]

Shapes as in model/transformer.py.
"""

from typing import NamedTuple

from torch import Tensor, nn

from megatape.distributed.collectives import scatter_sum_tokens
from megatape.distributed.mesh import SINGLE, Axis
from megatape.nn.linear_function import LinearFunction, linear, linear_and_input
from megatape.nn.parameters import Role, parameter
from megatape.nn.remat.gathered_input import GatheredInput
from megatape.nn.remat.remat import Remat


class Linear(nn.Module):
    """Base class of layers y = x W^T (+ b), of whose weights each tensor-parallel rank holds a shard."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, axis: Axis, linear_function: LinearFunction = linear) -> None:
        super().__init__()
        self.axis = axis
        self.in_features = in_features
        self.out_features = out_features
        self._training_function = linear_function

    def use_linear_function(self, linear_function: LinearFunction) -> None:
        """Choose the function computed in training, `linear` or its FP8 version. Evaluation always computes `linear`."""
        self._training_function = linear_function

    @property
    def linear_function(self) -> LinearFunction:
        """Function for the current mode, training or evaluation."""
        if self.training:
            return self._training_function
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
        linear_function: LinearFunction = linear,
    ) -> None:
        super().__init__(in_features, out_features, axis, linear_function)
        self.weight = parameter((out_features, in_features), axis, 0, role=role)
        self.bias = parameter((out_features,), axis, 0, init=0.0) if bias else None


class ColumnLinear(ColumnParallel):
    """Column-parallel layer whose input every rank already holds. Encodings use it for features by head."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, [B, N, in_features] -> [B, N, out_features / T]."""
        return self.linear_function(x, self.weight, self.bias)


class Projection(NamedTuple):
    """Result of a SharedInputLinear.

    Attributes:
        output: Output of the layer, [B, N, out_features / T].
        next_input: Input to pass to the next layer, or None after the last one.
    """

    output: Tensor
    next_input: Tensor | None


class SharedInputLinear(ColumnParallel):
    """Column-parallel layer that multiplies the same input as others, such as the query, key and value projections."""

    def forward(self, x: Tensor, *, gathered: GatheredInput | None = None, is_last: bool = True) -> Projection:
        """Return the output, and the input for the next layer.

        Passing the input on chains the layers' backward passes: each adds its gradient of x to that of the next layer while
        multiplying.

        Args:
            x: Tokens of all ranks, from the previous layer, [B, N, in_features].
            gathered: Record of x as an input being gathered, or None if every rank holds x and autograd saves it.
            is_last: Whether this is the last layer that multiplies x.
        """
        linear_function = self.linear_function
        remat = None if gathered is None else gathered.remat
        if is_last:
            return Projection(linear_function(x, self.weight, self.bias, remat), None)
        if linear_function is linear:
            return Projection(*linear_and_input(x, self.weight, self.bias, remat))
        return Projection(linear_function(x, self.weight, self.bias, remat), x)


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
        linear_function: LinearFunction = linear,
    ) -> None:
        super().__init__(in_features, out_features, axis, linear_function)
        self.weight = parameter((out_features, in_features), axis, 1)
        self.bias = parameter((out_features,), axis, init=0.0) if bias else None

    def forward(self, x: Tensor, *, remat: Remat | None = None) -> Tensor:
        """Return the output for this rank's tokens.

        Args:
            x: This rank's share of the features, [B, N, in_features / T].
            remat: Recipe for rebuilding x in the backward pass, or None if autograd saves x.
        """
        out = self.summed(x, remat)
        if self.bias is None:
            return out
        return out + self.bias

    def summed(self, x: Tensor, remat: Remat | None) -> Tensor:
        """Return the sum of all ranks' outputs, for this rank's tokens."""
        partial_sums = self.linear_function(x, self.weight, None, remat)
        return scatter_sum_tokens(partial_sums, self.axis)

"""The function that linear layers compute, x W^T (+ b), in the precision of x. nn/fp8.py computes it in FP8."""

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from megatape.nn.forward_context import forward_context
from megatape.nn.remat.remat import Recipe, Remat, identity
from megatape.nn.remat.shared_input import SharedInput


class LinearFunction(Protocol):
    """Function of a linear layer, x W^T (+ b)."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, remat: Remat | None = None) -> Tensor:
        """Multiply an input by a weight, and add a bias.

        Args:
            x: [..., in_features].
            weight: [out_features, in_features].
            bias: [out_features] or None.
            remat: Recipe for rebuilding x in the backward pass, or None if autograd saves x.

        Returns:
            [..., out_features].
        """
        ...


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, remat: Remat | None = None) -> Tensor:
    """Return F.linear. Autograd saves the arguments in x's recipe instead of x, if x has a Remat. See LinearFunction."""
    x_remat = matching_remat(x, remat)
    if x_remat is None:
        return F.linear(x, weight, bias)
    y, _ = _RematLinear.apply(x, weight, bias, x_remat.shared_input, *x_remat.recipe.args)
    return y


def linear_and_input(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, remat: Remat | None = None
) -> tuple[Tensor, Tensor]:
    """Return `linear`, and x for the next layer that multiplies it. Arguments as in LinearFunction.

    Otherwise autograd would write each layer's gradient of x to memory before adding it to the others.
    """
    x_remat = matching_remat(x, remat)
    if x_remat is None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return F.linear(x, weight, bias), x
        x_remat = Remat(x, Recipe(identity, (x.detach(),)))
    return _RematLinear.apply(x, weight, bias, x_remat.shared_input, *x_remat.recipe.args)  # type: ignore[no-any-return]


def matching_remat(x: Tensor, passed: Remat | None) -> Remat | None:
    """Return the Remat of x: the one passed, or else that of the forward context, or None if it rebuilds another tensor."""
    if torch.compiler.is_compiling():
        return None
    candidate = passed or forward_context().shared_remat
    if candidate is None:
        return None
    return candidate.matching(x)


class _RematLinear(torch.autograd.Function):
    """x W^T (+ b), and x. Saves the weight, and unless it is frozen the arguments from which x is rebuilt.

    The weight is saved itself, not as a view, because ZeRO stage 3 frees and refills its storage.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, shared_input: SharedInput, *args: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.shared_input = shared_input
        ctx.set_materialize_grads(False)
        if weight.requires_grad:
            shared_input.add_consumer()
            ctx.save_for_backward(weight, *args)
        else:
            ctx.save_for_backward(weight)
        return shared_input.multiply(x, weight, bias), x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_from_later: Tensor | None) -> tuple[Tensor | None, ...]:
        weight, *args = ctx.saved_tensors
        needs_weight, needs_bias = ctx.needs_input_grad[1:3]
        if needs_weight:
            # Gathering x overlaps with the matmul for its gradient.
            ctx.shared_input.begin(args)

        if grad_from_later is None:
            grad_x = grad @ weight
        else:
            total = grad_from_later.contiguous().flatten(0, 1)
            grad_x = torch.addmm(total, grad.flatten(0, 1), weight, out=total).view_as(grad_from_later)

        grad_weight = None
        if needs_weight:
            x = ctx.shared_input.finish()
            grad_weight = grad.flatten(0, 1).T @ x.flatten(0, 1)
        grad_bias = grad.sum((0, 1)) if needs_bias else None
        no_gradients = [None] * (len(ctx.needs_input_grad) - 3)
        return grad_x, grad_weight, grad_bias, *no_gradients

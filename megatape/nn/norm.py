"""Normalization layers of a model, and RMSNorm (Zhang and Sennrich, arXiv 1910.07467). Shapes as in model/transformer.py."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from megatape.config import ModelConfig
from megatape.distributed.mesh import SINGLE, Axis
from megatape.nn.parameters import parameter
from megatape.nn.remat.rebuilt import saves_memory
from megatape.nn.remat.remat import Rebuild, Recipe, Remat, recipe_of
from megatape.registry import NORMALIZATIONS
from megatape.utils.pytorch.torch_internals import fused_rms_norm, fused_rms_norm_backward


def normalization(config: ModelConfig, size: int, axis: Axis = SINGLE) -> nn.Module:
    """Return a normalization layer of the model's kind for a last dimension of `size` channels."""
    kind = NORMALIZATIONS[config.normalization].load()
    return kind(size, config.norm_eps, axis)


def normalize(norm: nn.Module, x: Tensor, remat: Remat | None) -> Tensor:
    """Return norm(x).

    Args:
        norm: Normalization layer. Only RMSNorm uses `remat`.
        x: Input of the layer.
        remat: Recipe for rebuilding x in the backward pass, or None if autograd saves x.
    """
    if isinstance(norm, RMSNorm):
        normalized: Tensor = norm(x, remat=remat)
    else:
        normalized = norm(x)
    return normalized


def normalize_and_rebuild(norm: nn.Module, x: Tensor, remat: Remat | None) -> tuple[Tensor, Remat | None]:
    """Return `normalize`, and how the backward pass rebuilds the result."""
    normalized = normalize(norm, x, remat)
    if not saves_memory():
        return normalized, None
    # Separate, because a function that referred to the arguments would keep them in memory after the backward pass.
    rebuild_x, args = recipe_of(x, remat)

    def rebuild(*args: Tensor) -> Tensor:
        rebuilt: Tensor = norm(rebuild_x(*args))
        return rebuilt

    return normalized, Remat(normalized, Recipe(rebuild, args))


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, computed in float32, returned in the dtype of x. weight: [size]."""

    def __init__(self, size: int, eps: float, axis: Axis = SINGLE) -> None:
        super().__init__()
        self.eps = eps
        self.weight = parameter((size,), axis, init=1.0)

    def forward(self, x: Tensor, *, remat: Remat | None = None) -> Tensor:
        """Normalize x [..., size]. `remat` says how the backward pass rebuilds x, or is None if autograd saves x."""
        recipe = recipe_of(x, remat)
        return _RMSNorm.apply(x, self.weight, self.eps, recipe.function, *recipe.args)


class _RMSNorm(torch.autograd.Function):
    """RMSNorm that saves x, or what x is rebuilt from, and one float32 number per row. Autograd would save x in float32.

    The weight is saved itself, not as a view, because ZeRO stage 3 frees and refills its storage.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, rebuild_x: Rebuild, *args: Tensor) -> Tensor:
        normed, scale = fused_rms_norm(x, weight, eps)
        ctx.rebuild_x = rebuild_x
        ctx.save_for_backward(weight, scale, *args)
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, scale, *args = ctx.saved_tensors
        needs = ctx.needs_input_grad
        x = ctx.rebuild_x(*args)
        gradients = _by_formula if grad.is_cpu else fused_rms_norm_backward
        d_x, d_weight = gradients(grad, x, scale, weight, needs[:2])
        no_gradients = [None] * (len(needs) - 2)
        return d_x, d_weight, *no_gradients


def _by_formula(
    grad: Tensor, x: Tensor, scale: Tensor, weight: Tensor, needs: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Compute `fused_rms_norm_backward` on a CPU: autograd's operations in autograd's order, for bit-identical results."""
    grad = grad.float()
    x = x.float()
    d_x = None
    d_weight = None
    if needs[1]:
        d_weight = (x * scale).mul_(grad).sum_to_size(weight.shape).to(weight.dtype)
    if needs[0]:
        d_normed = grad * weight
        d_scale = (d_normed * x).sum(-1, keepdim=True)
        d_mean = d_scale * -0.5 * scale.pow(3)
        d_x = d_normed.mul_(scale).add_(x * (d_mean / x.shape[-1] * 2)).to(x.dtype)
    return d_x, d_weight

"""Gradient of a score bias, computed block by block.

B samples, L key/value heads of this rank, H query heads.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from megatape.attention.bias import ScoreBias


class BiasGradient:
    """Recomputes the bias of each block, and sums its weights' gradients over blocks.

    Args:
        bias: Bias on the scores.
        weights: Bias weights saved for the backward pass.
        needs_grad: Whether each weight needs a gradient.

    Attributes:
        gradients: Gradient of each weight, or None if it needs none.
    """

    def __init__(self, bias: ScoreBias, weights: Sequence[Tensor], needs_grad: Sequence[bool]) -> None:
        self.bias = bias
        self.weights = tuple(weight.detach().requires_grad_(needs) for weight, needs in zip(weights, needs_grad, strict=True))
        self.trained = [weight for weight in self.weights if weight.requires_grad]
        self.gradients = [torch.zeros_like(weight) if weight.requires_grad else None for weight in self.weights]
        # Bias of the current block, [B or 1, H, rows, columns], and its gradient
        self._block: Tensor
        self._d_block: Tensor

    def block(self, rows: slice, columns: slice) -> Tensor:
        """Begin a block and return its bias, [B or 1, H, rows, columns]."""
        with torch.enable_grad():
            self._block = self.bias.block(self.weights, rows, columns)
        if self._block.requires_grad:
            self._d_block = torch.empty_like(self._block)
        return self._block.detach()

    def add(self, d_scores: Tensor, heads: slice) -> None:
        """Add the gradient of the block's scores for some heads.

        Args:
            d_scores: Gradient of the scores, [B, L, rows, columns].
            heads: Query heads of these scores, one per key/value head.
        """
        if not self._block.requires_grad:
            return
        shared_by_samples = len(self._block) == 1
        if shared_by_samples:
            d_scores = d_scores.sum(0, keepdim=True)
        self._d_block[:, heads] = d_scores

    def finish_block(self) -> None:
        """Add this block's gradients to those of the weights."""
        if not self._block.requires_grad:
            return
        # Weights that the block does not read get zeros.
        gradients = torch.autograd.grad(self._block, self.trained, self._d_block, materialize_grads=True)
        totals = [total for total in self.gradients if total is not None]
        for total, gradient in zip(totals, gradients, strict=True):
            total += gradient

"""Bias on the scores, block by block, and the gradients of its weights.

B samples, L key/value heads of this rank, H query heads, S = B L sequences, and G = H / L groups as in folding.py.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from megatape.attention.bias import ScoreBias


class BlockBias:
    """Adds the bias of a block to its scores. Without a bias, all methods do nothing.

    Args:
        bias: Bias on the scores, or None.
        weights: Weights of the bias.
        num_channels: Number L of key/value heads.
        num_groups: Number G of query heads per key/value head.
    """

    def __init__(self, bias: ScoreBias | None, weights: Sequence[Tensor], num_channels: int, num_groups: int) -> None:
        self.bias = bias
        self.weights = tuple(weights)
        self.num_channels = num_channels
        self.num_groups = num_groups
        # Bias of the current block, [B or 1, H, rows, columns].
        self._block: Tensor

    def begin_block(self, rows: slice, columns: slice) -> None:
        """Compute the bias of the next block."""
        if self.bias is not None:
            self._block = self.bias.block(self.weights, rows, columns)

    def add_to(self, scores: Tensor, group: int) -> None:
        """Add the current block's bias to the scores of one group of heads, [S, rows, columns], in place."""
        if self.bias is not None:
            self._by_sample(scores).add_(self._block[:, self._heads(group)])

    def _by_sample(self, scores: Tensor) -> Tensor:
        """View scores [S, rows, columns] as [B, L, rows, columns]."""
        return scores.unflatten(0, (-1, self.num_channels))

    def _heads(self, group: int) -> slice:
        """Return the query heads of a group, one per key/value head."""
        return slice(group, None, self.num_groups)


class DifferentiableBlockBias(BlockBias):
    """Bias in the backward pass: recomputes each block, and sums its weights' gradients over blocks.

    Args:
        bias: Bias on the scores, or None.
        weights: Weights saved for the backward pass.
        num_channels: Number L of key/value heads.
        num_groups: Number G of query heads per key/value head.
        needs_grad: Whether each weight needs a gradient.

    Attributes:
        gradients: Gradient of each weight, or None if it needs none.
    """

    def __init__(
        self,
        bias: ScoreBias | None,
        weights: Sequence[Tensor],
        num_channels: int,
        num_groups: int,
        needs_grad: Sequence[bool],
    ) -> None:
        detached = [weight.detach().requires_grad_(needs) for weight, needs in zip(weights, needs_grad, strict=True)]
        super().__init__(bias, detached, num_channels, num_groups)
        self.trained = [weight for weight in detached if weight.requires_grad]
        self.gradients: list[Tensor | None] = []
        for weight in detached:
            if weight.requires_grad:
                self.gradients.append(torch.zeros_like(weight))
            else:
                self.gradients.append(None)
        # Block with a graph back to the weights, or None if no weight needs a gradient.
        self._graph: Tensor | None = None
        # Gradient of the current block, [B or 1, H, rows, columns].
        self._d_block: Tensor

    def begin_block(self, rows: slice, columns: slice) -> None:
        if self.bias is None:
            return
        with torch.enable_grad():
            block = self.bias.block(self.weights, rows, columns)
        self._block = block.detach()
        self._graph = block if block.requires_grad else None
        if block.requires_grad:
            self._d_block = torch.empty_like(block)

    def add_gradient(self, d_scores: Tensor, group: int) -> None:
        """Record the gradient of the current block's scores in one group of heads, [S, rows, columns]."""
        if self._graph is None:
            return
        d_block = self._by_sample(d_scores)
        shared_by_samples = len(self._block) == 1
        if shared_by_samples:
            d_block = d_block.sum(0, keepdim=True)
        self._d_block[:, self._heads(group)] = d_block

    def finish_block(self) -> None:
        """Add this block's gradients to those of the weights."""
        if self._graph is None:
            return
        # Weights that the block does not read get zeros.
        gradients = torch.autograd.grad(self._graph, self.trained, self._d_block, materialize_grads=True)
        totals = [total for total in self.gradients if total is not None]
        for total, gradient in zip(totals, gradients, strict=True):
            total += gradient

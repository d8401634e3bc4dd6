"""Cross entropy over a vocabulary divided among tensor-parallel ranks, in chunks of tokens.

The logits never exist all at once.

B batch, N tokens, C hidden, V vocabulary, T tensor-parallel ranks.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.parallel.collectives import all_gather, every_rank, reduce_scatter
from megatape.parallel.layout import own_rows
from megatape.parallel.mesh import Axis
from megatape.targets import target_mask

# Logits that a rank computes at a time: 128 MiB in float32, enough rows for efficient products up
# to a vocabulary of 131072.
CHUNK_ELEMENTS = 2**25


def cross_entropy(x: Tensor, weight: Tensor, targets: Tensor, vocab_size: int, axis: Axis) -> Tensor:
    """Float32 sum of the cross entropies of all targets that are not IGNORE_INDEX, the same on all tensor-parallel ranks.

    x: [B, N/T, C]; weight: [ceil(V / T), C], this rank's rows of the output matrix, those beyond
    `vocab_size` being padding; targets: [B, N].

    The forward pass computes the gradients of x and weight too, while it has the logits, and keeps
    them for the backward pass, which follows at once. So no chunk's logits are computed twice.
    """
    return _CrossEntropy.apply(x, weight, targets, vocab_size, axis, torch.is_grad_enabled())  # type: ignore[no-any-return]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, vocab_size: int, axis: Axis, differentiate: bool
    ) -> Tensor:
        whole = all_gather(x, axis)
        states, targets = whole.flatten(0, 1), targets.flatten()
        total = torch.zeros((), device=x.device)
        if differentiate:
            grad_states = torch.empty_like(states)
            # A sum over chunks, rounded once at the end.
            grad_weight = torch.zeros_like(weight, dtype=torch.float32) if weight.requires_grad else None
        size = max(1, CHUNK_ELEMENTS // weight.shape[0])
        for first in range(0, len(states), size):
            piece = slice(first, first + size)
            rows, held = own_rows(targets[piece], weight.shape[0], axis)
            losses, probabilities = _chunk(states[piece], weight, rows, held, vocab_size, axis)
            counts = target_mask(targets[piece])
            total += (losses * counts).sum()
            if differentiate:
                # d loss / d logits: the probabilities, minus one at the target; zero where a token has no target.
                probabilities.scatter_add_(1, rows[:, None], -held[:, None].float())
                grad_logits = probabilities.mul_(counts[:, None]).to(weight.dtype)
                grad_states[piece] = grad_logits @ weight
                if grad_weight is not None:
                    _add_product(grad_weight, grad_logits.T, states[piece])
                del grad_logits
            del probabilities  # before computing the next chunk's logits
        if differentiate:
            # Not saved through autograd, so that the backward pass can return them without a copy.
            grad_x = reduce_scatter(grad_states.view_as(whole), axis)
            ctx.gradients = [grad_x, None if grad_weight is None else grad_weight.to(weight.dtype)]
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.gradients:
            raise RuntimeError("the loss can be differentiated only once: the first backward pass released its gradients")
        grad_weight, grad_x = ctx.gradients.pop(), ctx.gradients.pop()
        return grad_x.mul_(grad), None if grad_weight is None else grad_weight.mul_(grad), None, None, None, None


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, without a temporary where the dtypes are the same."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _chunk(states: Tensor, weight: Tensor, rows: Tensor, held: Tensor, vocab_size: int, axis: Axis) -> tuple[Tensor, Tensor]:
    """states: [n, C]; rows, held: [n], the targets' rows and whether this rank holds them.

    Returns the cross entropies [n] and this rank's share of the probabilities [n, ceil(V / T)], in float32.
    """
    logits = mask_padding(F.linear(states, weight), vocab_size, axis).float()
    chosen = logits.gather(1, rows[:, None]).squeeze(1).where(held, 0.0)
    # One exchange: the log-sum-exp over each rank's logits, and the target's logit, which one rank holds.
    everywhere = every_rank(torch.stack([logits.logsumexp(1), chosen]), axis)  # [T, 2, n]
    log_total = everywhere[:, 0].logsumexp(0)
    return log_total - everywhere[:, 1].sum(0), logits.sub_(log_total[:, None]).exp_()


def mask_padding(logits: Tensor, vocab_size: int, axis: Axis) -> Tensor:
    """This rank's logits [..., ceil(V / T)] with minus infinity at padding rows, which may be all of its rows."""
    real = vocab_size - axis.rank * logits.shape[-1]
    if real >= logits.shape[-1]:
        return logits
    return logits.index_fill(-1, torch.arange(max(real, 0), logits.shape[-1], device=logits.device), float("-inf"))

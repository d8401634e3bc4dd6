"""Cross entropy over a vocabulary divided among tensor-parallel ranks, in chunks of tokens.

The logits never exist all at once. Of a token with logits s and the target t, with Z = log sum exp(s):

    cross entropy = Z - s_t        z-loss = z Z^2 (arXiv 2204.02311, section 5)        s = c tanh(x W^T / c) with a soft-cap c

B batch, N tokens, D hidden, V vocabulary, T tensor-parallel ranks.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.distributed.collectives import all_gather, every_rank, reduce_scatter
from megatape.distributed.layout import own_rows
from megatape.distributed.mesh import Axis
from megatape.nn.kernels.launch import has_kernels
from megatape.utils.targets import target_mask

# Logits that a rank computes at a time: 128 MiB in float32, enough rows for efficient products up
# to a vocabulary of 131072.
CHUNK_ELEMENTS = 2**25
# The same where a kernel needs no float32 copies: by the memory of the GPU, bytes for each of them, and at most. Longer chunks
# make fewer sums into the weight's gradient: 0.5 GiB in bfloat16 on an H200.
BYTES_A_KERNEL_ELEMENT = 512
MOST_KERNEL_ELEMENTS = 2**28


class LossFormula(NamedTuple):
    """The loss as a function of logits.

    Attributes:
        vocab_size: V; rows of the output matrix beyond it are padding.
        axis: the ranks that divide the vocabulary.
        softcap: c, or None (model.logit_softcap).
        z_loss: z (training.z_loss).
        by_kernel: compute it by our Triton kernel, where that runs.
    """

    vocab_size: int
    axis: Axis
    softcap: float | None = None
    z_loss: float = 0.0
    by_kernel: bool = False


def cross_entropy(x: Tensor, weight: Tensor, targets: Tensor, formula: LossFormula) -> Tensor:
    """Float32 sum of the cross entropies of all targets that are not IGNORE_INDEX, the same on all tensor-parallel ranks.

    Its gradients are those of this sum and the z-loss: the number is comparable whatever the z-loss is.

    The forward pass computes the gradients of x and weight too, while it has the logits, and keeps them for the backward pass,
    which follows at once. So no chunk's logits are computed twice.

    Args:
        x: [B, N/T, D].
        weight: [ceil(V / T), D], this rank's rows of the output matrix.
        targets: [B, N].
        formula: of the loss.
    """
    return _CrossEntropy.apply(x, weight, targets, formula, torch.is_grad_enabled())  # type: ignore[no-any-return]


def chunk_elements(by_kernel: bool, device: torch.device | None = None) -> int:
    """Most logits that a rank computes at a time; without a device, on the largest GPU."""
    if not by_kernel:
        return CHUNK_ELEMENTS
    if device is None or device.type != "cuda":
        return MOST_KERNEL_ELEMENTS
    memory = torch.cuda.get_device_properties(device).total_memory
    return min(MOST_KERNEL_ELEMENTS, max(CHUNK_ELEMENTS, memory // BYTES_A_KERNEL_ELEMENT))


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, formula: LossFormula, differentiate: bool) -> Tensor:
        whole = all_gather(x, formula.axis)
        states = whole.flatten(0, 1)
        targets = targets.flatten()
        total = torch.zeros((), device=x.device)
        if differentiate:
            grad_states = torch.empty_like(states)
            # A sum over chunks, rounded once at the end.
            grad_weight = torch.zeros_like(weight, dtype=torch.float32) if weight.requires_grad else None
        by_kernel = formula.by_kernel and has_kernels(x.device)
        compute = _chunk_by_kernel if by_kernel else _chunk
        size = max(1, chunk_elements(by_kernel, x.device) // weight.shape[0])
        for first in range(0, len(states), size):
            piece = slice(first, first + size)
            losses, grad_logits = compute(states[piece], weight, targets[piece], formula, differentiate)
            total += (losses * target_mask(targets[piece])).sum()
            if grad_logits is not None:
                grad_states[piece] = grad_logits @ weight
                if grad_weight is not None:
                    _add_product(grad_weight, grad_logits.T, states[piece], by_kernel)
            del grad_logits  # before computing the next chunk's logits
        if differentiate:
            # Not saved through autograd, so that the backward pass can return them without a copy.
            grad_x = reduce_scatter(grad_states.view_as(whole), formula.axis)
            ctx.gradients = [grad_x, None if grad_weight is None else grad_weight.to(weight.dtype)]
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.gradients:
            raise RuntimeError("the loss can be differentiated only once: the first backward pass released its gradients")
        grad_weight = ctx.gradients.pop()
        grad_x = ctx.gradients.pop()
        return grad_x.mul_(grad), None if grad_weight is None else grad_weight.mul_(grad), None, None, None


def _add_product(total: Tensor, left: Tensor, right: Tensor, on_gpu: bool) -> None:
    """total += left @ right, without a temporary where the dtypes are the same, on a GPU, or on shapes."""
    if total.dtype == left.dtype or total.is_meta:  # torch 2.11 has no meta kernel for the next operator
        torch.addmm(total, left, right, out=total)
    elif on_gpu:  # float32 sums inside the product: no chunk's product is rounded
        torch.ops.aten.addmm.dtype_out(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total += left @ right


def _chunk(
    states: Tensor, weight: Tensor, targets: Tensor, formula: LossFormula, differentiate: bool
) -> tuple[Tensor, Tensor | None]:
    """Cross entropies [n] of states [n, D] and targets [n], those that do not count included, and the gradient of the logits.

    The gradient is [n, ceil(V / T)] in the dtype of the weight, and zero where a token has no target; None unless
    `differentiate`.
    """
    rows, held = own_rows(targets, weight.shape[0], formula.axis)
    logits = F.linear(states, weight)
    slopes = None
    if formula.softcap is not None:
        logits = soft_cap(logits.float(), formula.softcap)
        slopes = 1 - (logits / formula.softcap).square_() if differentiate else None
    logits = mask_padding(logits, formula.vocab_size, formula.axis).float()
    chosen = logits.gather(1, rows[:, None]).squeeze(1).where(held, 0.0)
    log_total, chosen = _over_ranks(torch.stack([logits.logsumexp(1), chosen]), formula.axis)
    if not differentiate:
        return log_total - chosen, None
    # d loss / d logits: the probabilities, minus one at the target.
    gradient = logits.sub_(log_total[:, None]).exp_()
    if formula.z_loss:
        gradient.mul_(1 + 2 * formula.z_loss * log_total[:, None])
    gradient.scatter_add_(1, rows[:, None], -held[:, None].float())
    gradient.mul_(target_mask(targets)[:, None])
    if slopes is not None:
        gradient.mul_(slopes)
    return log_total - chosen, gradient.to(weight.dtype)


def _chunk_by_kernel(
    states: Tensor, weight: Tensor, targets: Tensor, formula: LossFormula, differentiate: bool
) -> tuple[Tensor, Tensor | None]:
    """The same by one Triton kernel, which writes the gradient over the logits; two launches around ranks' exchange."""
    from megatape.nn.kernels.loss import run_loss_kernel

    axis = formula.axis
    columns = weight.shape[0]
    rows, held = own_rows(targets, columns, axis)
    logits = F.linear(states, weight)
    sums = logits.new_empty(2, len(logits), dtype=torch.float32)  # of each row: log-sum-exp, and the target's logit
    run = partial(
        run_loss_kernel,
        logits,
        rows.where(held, -1),
        targets,
        real=min(num_valid_rows(columns, formula.vocab_size, axis), columns),
        softcap=formula.softcap,
        z_loss=formula.z_loss,
    )
    run(sums, measure=True, differentiate=differentiate and axis.size == 1)
    if axis.size > 1:
        sums = torch.stack(_over_ranks(sums, axis))
        if differentiate:
            run(sums, measure=False, differentiate=True)
    return sums[0] - sums[1], logits if differentiate else None


def _over_ranks(sums: Tensor, axis: Axis) -> tuple[Tensor, Tensor]:
    """Of each rank's log-sum-exps and the target's logits, [2, n], which one rank holds, those of the whole vocabulary [n]."""
    everywhere = every_rank(sums, axis)  # [T, 2, n]
    return everywhere[:, 0].logsumexp(0), everywhere[:, 1].sum(0)


def soft_cap(logits: Tensor, cap: float) -> Tensor:
    """Logits within -cap and cap: cap tanh(logits / cap)."""
    return cap * torch.tanh(logits / cap)


def num_valid_rows(num_rows: int, vocab_size: int, axis: Axis) -> int:
    """The first of this rank's `num_rows` rows of the vocabulary that is padding; `num_rows` or more if none is."""
    return max(vocab_size - axis.rank * num_rows, 0)


def mask_padding(logits: Tensor, vocab_size: int, axis: Axis) -> Tensor:
    """This rank's logits [..., ceil(V / T)] with minus infinity at padding rows, which may be all of its rows."""
    real = num_valid_rows(logits.shape[-1], vocab_size, axis)
    if real >= logits.shape[-1]:
        return logits
    return logits.index_fill(-1, torch.arange(real, logits.shape[-1], device=logits.device), float("-inf"))

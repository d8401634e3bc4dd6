"""Cross entropy over a vocabulary sharded across tensor-parallel ranks, computed for one chunk of tokens after another.

The logits of all tokens never exist at once. For a token with content x, logits s and target t, and Z = log sum exp(s):

    s = x W^T, or c tanh(x W^T / c) with a soft-cap c
    cross entropy = Z - s_t
    z-loss = z Z^2                                             (arXiv 2204.02311, section 5)
    d (cross entropy + z-loss) / d s_v = (1 + 2 z Z) softmax(s)_v - [v = t]

Shapes as in model/transformer.py; n is the number of tokens in a chunk.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.distributed.collectives import all_gather, every_rank, reduce_scatter
from megatape.distributed.layout import local_rows
from megatape.distributed.mesh import Axis
from megatape.nn.kernels.launch import has_kernels
from megatape.nn.logits import mask_padding, num_valid_rows, soft_cap
from megatape.nn.targets import target_mask

# Number of logits that a rank computes at a time: 128 MiB in float32, and enough rows for efficient products up to a
# vocabulary of 131,072.
CHUNK_LOGITS = 2**25

# The kernel needs no float32 copy of the logits, so its chunks are longer, and the weight's gradient is summed less often.
# A chunk has one logit per 512 bytes of GPU memory, up to a maximum: 0.5 GiB in bfloat16 on an H200.
BYTES_PER_KERNEL_LOGIT = 512
MAX_KERNEL_LOGITS = 2**28


class LossFormula(NamedTuple):
    """Loss as a function of the logits.

    Attributes:
        vocab_size: Vocabulary size V. Rows of the output matrix beyond it are padding.
        axis: Tensor-parallel ranks sharing the vocabulary.
        softcap: Soft-cap c of the logits (model.logit_softcap), or None.
        z_loss: Factor z of the z-loss (training.z_loss).
        by_kernel: Whether to use our Triton kernel on devices that support it.
    """

    vocab_size: int
    axis: Axis
    softcap: float | None = None
    z_loss: float = 0.0
    by_kernel: bool = False


def cross_entropy(x: Tensor, weight: Tensor, targets: Tensor, formula: LossFormula) -> Tensor:
    """Return the cross entropy summed over all targets except IGNORE_INDEX.

    The gradients include the z-loss. The returned sum does not, so that runs with and without it can be compared. The forward
    pass also computes the gradients, while it has the logits, and the backward pass only returns them.

    Args:
        x: Normalized content of this rank's tokens, [B, N/T, D].
        weight: This rank's rows of the output matrix, [ceil(V / T), D].
        targets: Ids of the next tokens or IGNORE_INDEX, [B, N].
        formula: Loss as a function of the logits.

    Returns:
        Float32 scalar, the same on all tensor-parallel ranks.
    """
    return _CrossEntropy.apply(x, weight, targets, formula, torch.is_grad_enabled())  # type: ignore[no-any-return]


def chunk_logits(by_kernel: bool, device: torch.device | None = None) -> int:
    """Return the maximum number of logits that a rank computes at a time. Without a device, that of the largest GPU."""
    if not by_kernel:
        return CHUNK_LOGITS
    if device is None or device.type != "cuda":
        return MAX_KERNEL_LOGITS
    memory = torch.cuda.get_device_properties(device).total_memory
    return min(MAX_KERNEL_LOGITS, max(CHUNK_LOGITS, memory // BYTES_PER_KERNEL_LOGIT))


class _CrossEntropy(torch.autograd.Function):
    """Computes loss and gradients in the forward pass, see cross_entropy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, formula: LossFormula, differentiate: bool) -> Tensor:
        whole = all_gather(x, formula.axis)
        states = whole.flatten(0, 1)
        targets = targets.flatten()
        by_kernel = formula.by_kernel and has_kernels(x.device)
        compute = _losses_by_kernel if by_kernel else _losses_by_torch
        gradients = _LossGradients(states, weight) if differentiate else None

        total = torch.zeros((), device=x.device)
        size = max(1, chunk_logits(by_kernel, x.device) // weight.shape[0])
        for first in range(0, len(states), size):
            chunk = slice(first, first + size)
            losses, grad_logits = compute(states[chunk], weight, targets[chunk], formula, differentiate)
            total += (losses * target_mask(targets[chunk])).sum()
            if gradients is not None and grad_logits is not None:
                gradients.add_chunk(chunk, grad_logits)
            # Free this chunk's memory before the next one is computed.
            del grad_logits

        if gradients is not None:
            grad_x = reduce_scatter(gradients.of_states.view_as(whole), formula.axis)
            # Saving them through autograd would force the backward pass to copy them.
            ctx.gradients = [grad_x, gradients.rounded_weight_gradient()]
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.gradients:
            raise RuntimeError("the loss can be differentiated only once: the first backward pass released its gradients")
        grad_weight = ctx.gradients.pop()
        grad_x = ctx.gradients.pop().mul_(grad)
        if grad_weight is not None:
            grad_weight = grad_weight.mul_(grad)
        return grad_x, grad_weight, None, None, None


class _LossGradients:
    """Gradients of content and output matrix, collected chunk by chunk.

    Attributes:
        of_states: Gradient of all tokens' content, [B N, D].
        of_weight: Gradient of the output matrix, summed over chunks in float32, or None if the matrix is frozen.
    """

    def __init__(self, states: Tensor, weight: Tensor) -> None:
        self.states = states
        self.weight = weight
        self.of_states = torch.empty_like(states)
        self.of_weight = torch.zeros_like(weight, dtype=torch.float32) if weight.requires_grad else None

    def add_chunk(self, chunk: slice, grad_logits: Tensor) -> None:
        """Add the gradients of one chunk, given those of its logits, [n, ceil(V / T)]."""
        self.of_states[chunk] = grad_logits @ self.weight
        if self.of_weight is not None:
            add_product(self.of_weight, grad_logits.T, self.states[chunk])

    def rounded_weight_gradient(self) -> Tensor | None:
        """Return the output matrix's gradient in its dtype, rounded only once, after all chunks."""
        if self.of_weight is None:
            return None
        return self.of_weight.to(self.weight.dtype)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right to `total` in place, without a temporary except for mixed dtypes on a CPU."""
    if total.dtype == left.dtype or total.is_meta:
        # torch 2.11 has no meta kernel for the operator below.
        torch.addmm(total, left, right, out=total)
    elif total.is_cuda:
        # The product is accumulated in float32, so no chunk's product is rounded.
        torch.ops.aten.addmm.dtype_out(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total += left @ right


def _losses_by_torch(
    states: Tensor, weight: Tensor, targets: Tensor, formula: LossFormula, differentiate: bool
) -> tuple[Tensor, Tensor | None]:
    """Compute one chunk's cross entropies [n], and with `differentiate` the gradient of its logits, [n, ceil(V / T)].

    Tokens without a target get a meaningless cross entropy and a gradient of zero.
    """
    rows, is_local = local_rows(targets, weight.shape[0], formula.axis)
    logits = F.linear(states, weight)
    slopes = None
    if formula.softcap is not None:
        logits = soft_cap(logits.float(), formula.softcap)
        if differentiate:
            slopes = 1 - (logits / formula.softcap).square_()
    logits = mask_padding(logits, formula.vocab_size, formula.axis).float()
    target_logits = logits.gather(1, rows[:, None]).squeeze(1).where(is_local, 0.0)
    local_sums = torch.stack([logits.logsumexp(1), target_logits])
    log_total, target_logits = _combine_ranks(local_sums, formula.axis)
    if not differentiate:
        return log_total - target_logits, None

    # The gradient of the logits: the probabilities, minus one at the target. It overwrites the logits.
    gradient = logits.sub_(log_total[:, None]).exp_()
    if formula.z_loss:
        gradient.mul_(1 + 2 * formula.z_loss * log_total[:, None])
    gradient.scatter_add_(1, rows[:, None], -is_local[:, None].float())
    gradient.mul_(target_mask(targets)[:, None])
    if slopes is not None:
        gradient.mul_(slopes)
    return log_total - target_logits, gradient.to(weight.dtype)


def _losses_by_kernel(
    states: Tensor, weight: Tensor, targets: Tensor, formula: LossFormula, differentiate: bool
) -> tuple[Tensor, Tensor | None]:
    """Compute `_losses_by_torch` by a Triton kernel. Ranks sharing the vocabulary launch it twice, exchanging sums between."""
    from megatape.nn.kernels.loss import run_loss_kernel

    axis = formula.axis
    columns = weight.shape[0]
    rows, is_local = local_rows(targets, columns, axis)
    logits = F.linear(states, weight)
    # Log-sum-exp and target logit of each token
    sums = logits.new_empty(2, len(logits), dtype=torch.float32)
    run = partial(
        run_loss_kernel,
        logits,
        rows.where(is_local, -1),
        targets,
        num_valid=min(num_valid_rows(columns, formula.vocab_size, axis), columns),
        softcap=formula.softcap,
        z_loss=formula.z_loss,
    )
    run(sums, compute_sums=True, differentiate=differentiate and axis.size == 1)
    if axis.size > 1:
        sums = torch.stack(_combine_ranks(sums, axis))
        if differentiate:
            run(sums, compute_sums=False, differentiate=True)
    gradient = logits if differentiate else None
    return sums[0] - sums[1], gradient


def _combine_ranks(sums: Tensor, axis: Axis) -> tuple[Tensor, Tensor]:
    """Combine the ranks' log-sum-exps and target logits, [2, n], into those of the whole vocabulary, two tensors [n].

    Only one rank holds a target's logit. The others have zero.
    """
    by_rank = every_rank(sums, axis)  # [T, 2, n]
    return by_rank[:, 0].logsumexp(0), by_rank[:, 1].sum(0)

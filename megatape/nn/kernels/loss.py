"""Triton kernel of the loss, which overwrites the logits with their gradient. In PyTorch: nn/loss.py, `_losses_by_torch`.

The kernel reads each row of logits once for the online maximum and sum, and once more for the gradient, from the cache if the
row fits. A bfloat16 logit then costs 4 to 6 bytes of memory traffic, compared to about 50 with PyTorch's operators.
"""

import triton
import triton.language as tl
from torch import Tensor

from megatape.nn.kernels.launch import launch
from megatape.nn.targets import IGNORE_INDEX

# Number of columns that a program reads at a time.
COLUMNS = 8192
# Number of warps of a program. With this many, the rows being processed at a time fit in the cache.
WARPS = 16


def run_loss_kernel(
    logits: Tensor,
    rows: Tensor,
    targets: Tensor,
    sums: Tensor,
    *,
    num_valid: int,
    softcap: float | None,
    z_loss: float,
    compute_sums: bool,
    differentiate: bool,
) -> None:
    """Launch the kernel.

    Args:
        logits: Logits before the soft-cap, [n, ceil(V / T)]. With `differentiate` they are overwritten with their gradient.
        rows: Index of each target among this rank's vocabulary rows, or -1, [n].
        targets: Targets, [n]. Tokens with IGNORE_INDEX get no gradient.
        sums: Log-sum-exp and target logit, float32 [2, n]. Written with `compute_sums`, for this rank's logits alone;
            otherwise read.
        num_valid: Number of columns that are not padding.
        softcap: Soft-cap of the logits, or None.
        z_loss: Factor of the squared log-sum-exp.
        compute_sums: Whether to compute `sums`.
        differentiate: Whether to compute the gradient from `sums`.
    """
    columns = logits.shape[1]
    gradient = logits if differentiate else None
    arguments = {
        # Tensors
        "logits": logits,
        "gradient": gradient,
        "rows": rows,
        "targets": targets,
        "log_sum": sums[0],
        "target_logits": sums[1],
        # Sizes and factors
        "columns": columns,
        "num_valid": num_valid,
        "cap": softcap or 0.0,
        "z_loss": z_loss,
        # Flags and compile-time sizes
        "CAPPED": softcap is not None,
        "COMPUTE_SUMS": compute_sums,
        "IGNORED": IGNORE_INDEX,
        "COLUMNS": min(COLUMNS, triton.next_power_of_2(columns)),
    }
    launch(loss_kernel, (len(logits),), 0.0, WARPS, 1, arguments)


@triton.jit
def loss_kernel(
    # Tensors
    logits,
    gradient,
    rows,
    targets,
    log_sum,
    target_logits,
    # Sizes and factors
    columns,
    num_valid,
    cap,
    z_loss,
    # Flags and compile-time sizes
    CAPPED: tl.constexpr,
    COMPUTE_SUMS: tl.constexpr,
    IGNORED: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Compute log_sum and target_logits with COMPUTE_SUMS, and the gradient unless it is None. Each program handles one row.

    Tensors as in run_loss_kernel. Columns from `num_valid` on are padding.
    """
    row = tl.program_id(0).to(tl.int64)
    start = row * columns
    target = tl.load(rows + row)
    if COMPUTE_SUMS:
        # Not minus infinity, because all columns may be padding.
        largest = -1e30
        total = 0.0
        target_logit = 0.0
        for first in range(0, columns, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            values = _load_logits(logits + start + column, column < num_valid, cap, CAPPED)
            values = tl.where(column < num_valid, values, float("-inf"))
            highest = tl.maximum(largest, tl.max(values, 0))
            total = total * tl.exp(largest - highest) + tl.sum(tl.exp(values - highest), 0)
            largest = highest
            target_logit += tl.sum(tl.where(column == target, values, 0.0), 0)
        log_total = largest + tl.log(total)
        tl.store(log_sum + row, log_total)
        tl.store(target_logits + row, target_logit)
    else:
        log_total = tl.load(log_sum + row)
    if gradient is not None:
        counts = tl.load(targets + row) != IGNORED
        for first in range(0, columns, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            values = _load_logits(logits + start + column, column < num_valid, cap, CAPPED)
            # d loss / d logit = softmax (1 + 2 z_loss log_total) - [column is the target]
            slopes = tl.exp(values - log_total) * (1.0 + 2.0 * z_loss * log_total) - tl.where(column == target, 1.0, 0.0)
            if CAPPED:
                slopes *= 1.0 - (values / cap) * (values / cap)
            slopes = tl.where((column < num_valid) & counts, slopes, 0.0)
            tl.store(gradient + start + column, slopes.to(gradient.dtype.element_ty), mask=column < columns)


@triton.jit
def _load_logits(pointers, is_valid, cap, CAPPED: tl.constexpr):
    """Load logits in float32, zero where they are not valid. With CAPPED, return cap tanh(logits / cap)."""
    values = tl.load(pointers, mask=is_valid, other=0.0).to(tl.float32)
    if CAPPED:
        values = cap * (1.0 - 2.0 / (tl.exp(2.0 * values / cap) + 1.0))
    return values

"""Steps of online softmax: attention of query rows to one block of keys after another, without saving the scores.

The steps and their names are those of FlashAttention-2 (Dao, arXiv 2307.08691). Its algorithm 1, for the scores S of a block of
rows and keys:

    m = max(S)       P~ = exp(S - m)       l = sum(P~)       O = P~ V / l       L = m + log(l)

Results for two sets of keys are merged by their log-sum-exp:

    L' = log(exp(L1) + exp(L2))            O' = exp(L1 - L') O1 + exp(L2 - L') O2

Its algorithm 2, the backward pass of a block, with D = sum(dO * O) along each row of all keys' O:

    P = exp(S - L)       dV += P^T dO       dS = P * (dO V^T - D)       dQ += dS K       dK += dS^T Q

V is [v | e] if attention moves the state. Shapes as in folding.py.
"""

from typing import NamedTuple

import torch
from torch import Tensor

# Finite lower bound of the maximum of a row of scores, all of which may be masked.
LOWEST = torch.finfo(torch.float32).min


class BlockResult(NamedTuple):
    """Attention of query rows to a block of keys, not yet divided by the sum of the exponentials.

    Attributes:
        weighted: P~ V, [S, rows, R + W].
        largest: m, [S, rows, 1].
        total: l, [S, rows, 1].
    """

    weighted: Tensor
    largest: Tensor
    total: Tensor


class RowResult(NamedTuple):
    """Attention of query rows to all keys so far.

    Attributes:
        out: O, [S, rows, R + W].
        log_sum: L, [S, rows, 1].
    """

    out: Tensor
    log_sum: Tensor


def attend_to_block(scores: Tensor, values: Tensor) -> BlockResult:
    """Compute m, l and P~ V of a block.

    A row that sees none of the keys gets zeros, and the lowest possible log-sum-exp.

    Args:
        scores: S, [S, rows, columns], minus infinity where a key is hidden. Overwritten with P~.
        values: V, [S, columns, R + W].
    """
    largest = scores.amax(-1, keepdim=True).clamp_(min=LOWEST)
    exponentials = scores.sub_(largest).exp_()
    total = exponentials.sum(-1, keepdim=True).clamp_(min=1.0)
    return BlockResult(exponentials @ values, largest, total)


def write(rows: RowResult, block: BlockResult) -> None:
    """Write the result of the rows' first block to `rows`, whose memory is uninitialized. Overwrites `block`."""
    torch.div(block.weighted, block.total, out=rows.out)
    torch.add(block.largest, block.total.log_(), out=rows.log_sum)


def merge(rows: RowResult, block: BlockResult) -> None:
    """Merge the result of another block into `rows`, in place. Overwrites `block`."""
    block_out = block.weighted.div_(block.total)
    block_log_sum = block.total.log_().add_(block.largest)
    log_sum = torch.logaddexp(rows.log_sum, block_log_sum)
    share = rows.log_sum.sub_(log_sum).exp_()
    block_share = block_log_sum.sub_(log_sum).exp_()
    rows.out.mul_(share).add_(block_out.mul_(block_share))
    rows.log_sum.copy_(log_sum)


def score_gradient(attention: Tensor, d_out: Tensor, values: Tensor, row_sum: Tensor) -> Tensor:
    """Return dS = P * (dO V^T - D) of a block, [S, rows, columns].

    Args:
        attention: P, [S, rows, columns].
        d_out: dO, [S, rows, R + W].
        values: V, [S, columns, R + W].
        row_sum: D, [S, rows, 1].
    """
    d_attention = torch.baddbmm(row_sum, d_out, values.mT, beta=-1)
    return d_attention.mul_(attention)

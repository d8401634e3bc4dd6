"""Online softmax, step by step, against the formula in float64."""

import math

import torch
from torch import Tensor

from megatape.attention.blocked.online_softmax import RowResult, attend_to_block, merge, score_gradient, write

NUM_ROWS = 5
NUM_KEYS = 12
BLOCKS = (slice(0, 3), slice(3, 4), slice(4, 12))


def random_tensor(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_merged_blocks_equal_softmax() -> None:
    """Blocks are weighted by their sums, and a row that sees no key of a block takes nothing from it."""
    scores = random_tensor(0, 2, NUM_ROWS, NUM_KEYS)
    scores[:, 0, BLOCKS[0]] = -math.inf
    scores[:, 1, BLOCKS[2]] = -math.inf
    values = random_tensor(1, 2, NUM_KEYS, 4)
    result = RowResult(scores.new_empty(2, NUM_ROWS, 4), scores.new_empty(2, NUM_ROWS, 1))
    for index, keys in enumerate(BLOCKS):
        block = attend_to_block(scores[..., keys].clone(), values[:, keys])
        combine = merge if index else write
        combine(result, block)
    torch.testing.assert_close(result.out, scores.softmax(-1) @ values)
    torch.testing.assert_close(result.log_sum, scores.logsumexp(-1, keepdim=True))


def test_score_gradient_equals_autograd() -> None:
    """The rows' sums D are subtracted, neither dropped nor added."""
    scores = random_tensor(0, 2, NUM_ROWS, NUM_KEYS).requires_grad_()
    values = random_tensor(1, 2, NUM_KEYS, 4)
    d_out = random_tensor(2, 2, NUM_ROWS, 4)
    attention = scores.softmax(-1)
    out = attention @ values
    (expected,) = torch.autograd.grad(out, scores, d_out)
    row_sum = (d_out * out.detach()).sum(-1, keepdim=True)
    torch.testing.assert_close(score_gradient(attention.detach(), d_out, values, row_sum), expected)

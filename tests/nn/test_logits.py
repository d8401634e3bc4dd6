"""Padding of logits."""

import pytest
import torch

from megatape.distributed.mesh import Axis
from megatape.nn.logits import mask_padding


@pytest.mark.parametrize(
    ("vocab_size", "num_ranks", "num_real_rows"), [(9, 8, [2, 2, 2, 2, 1, 0, 0, 0]), (8, 4, [2] * 4), (5, 1, [5])]
)
def test_padding_rows_are_minus_infinity(vocab_size: int, num_ranks: int, num_real_rows: list[int]) -> None:
    num_finite = []
    for rank in range(num_ranks):
        logits = torch.zeros(1, 3, -(-vocab_size // num_ranks))
        masked = mask_padding(logits, vocab_size, Axis("tensor", num_ranks, rank))
        num_finite.append(int(torch.isfinite(masked[0, 0]).sum()))
    assert num_finite == num_real_rows

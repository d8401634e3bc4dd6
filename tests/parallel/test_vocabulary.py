"""A vocabulary that leaves ranks with padding only: their logits must not count."""

import pytest
import torch

from megatape.parallel.collectives import TensorRanks
from megatape.parallel.layers import VocabularyHead


@pytest.mark.parametrize(("vocab_size", "size", "real"), [(9, 8, [2, 2, 2, 2, 1, 0, 0, 0]), (8, 4, [2] * 4), (5, 1, [5])])
def test_padding_rows_are_minus_infinity(vocab_size: int, size: int, real: list[int]) -> None:
    for rank in range(size):
        head = VocabularyHead(vocab_size, 4, TensorRanks(size, rank))
        assert head.weight is not None
        torch.nn.init.ones_(head.weight)
        logits = head.logits(torch.ones(1, 3, 4), None)
        assert logits.shape[-1] == -(-vocab_size // size)
        assert int(torch.isfinite(logits[0, 0]).sum()) == real[rank]

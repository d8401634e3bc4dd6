"""Block masks for flex_attention."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from megatape.attention.block_masks import document_blocks
from tests.helpers.models.attention import random_document_starts


@pytest.mark.parametrize("window", [None, 1, 100, 128, 300])
@pytest.mark.parametrize("length", [40, 128, 513, 640])
def test_blocks_are_those_of_all_pairs(length: int, window: int | None) -> None:
    """Skipped and unmasked blocks are those found by torch when checking every pair."""
    starts = random_document_starts(3, length)
    starts[2] = 0

    def sees_key(batch: torch.Tensor, head: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        return (column <= row) & (column >= starts[batch, row]) & (column > row - (window or length))

    mask = document_blocks(starts, 0, window)
    expected = create_block_mask(sees_key, 3, None, length, length, device="cpu")
    assert mask.seq_lengths == expected.seq_lengths
    assert mask.BLOCK_SIZE == expected.BLOCK_SIZE
    for kind in ("kv", "full_kv", "q", "full_q"):
        for part in (f"{kind}_num_blocks", f"{kind}_indices"):
            assert torch.equal(getattr(mask, part), getattr(expected, part)), part


def test_blocks_are_found_once_a_batch() -> None:
    """All layers share the mask. The next batch gets a new one, even if it overwrites the previous tensor."""
    starts = random_document_starts(2, 300)
    first = document_blocks(starts, starts._version)
    assert document_blocks(starts, starts._version) is first
    starts.zero_()
    second = document_blocks(starts, starts._version)
    assert second.kv_num_blocks.sum() > 0
    assert second.full_kv_num_blocks.sum() > first.full_kv_num_blocks.sum()

"""Pieces: consecutive elements of a shard, extracted from whole tensors and added to them."""

import pytest
import torch
from torch import Tensor

from megatape.nn.parameters import Shard
from megatape.zero.state.piece import Piece

WHOLE = torch.arange(1.0, 31.0).view(5, 6)


@pytest.mark.parametrize("columns", [slice(0, 6), slice(2, 5)])
@pytest.mark.parametrize(("start", "size"), [(0, 4), (1, 2), (4, 7), (5, 0), (2, 16)])
def test_extract_and_add_are_inverse(columns: slice, start: int, size: int) -> None:
    """The last row of the shard is padding: extracted as zeros, and not added."""
    shard = Shard(slice(1, 7), columns)
    piece = Piece((5, 6), shard, start, torch.zeros(size))

    def read(rows: slice, columns: slice) -> Tensor:
        assert rows.stop <= 5, "padding is not read"
        return WHOLE[rows, columns]

    values = piece.extract(read)
    padded = torch.cat([WHOLE, torch.zeros(2, 6)])
    flat_shard = padded[shard.rows, columns].reshape(-1)
    assert torch.equal(values, flat_shard[start : start + size])

    total = torch.zeros(5, 6)
    Piece((5, 6), shard, start, values).add_to(total)
    is_in_piece = torch.isin(WHOLE, values)
    assert torch.equal(total, WHOLE * is_in_piece)

"""Splitting query rows into blocks."""

from megatape.attention.blocked.row_blocks import BLOCK, RowBlocks
from megatape.distributed.mesh import Axis


def test_ranks_compute_equally_many_scores() -> None:
    """In every ring step, row blocks see equally many keys on each rank."""
    length = 64 * BLOCK
    num_ranks = 8
    ranks = [Axis("context", num_ranks, rank) for rank in range(num_ranks)]
    for step in range(num_ranks):
        counts = set()
        for axis in ranks:
            key_rank = (axis.rank - step) % num_ranks
            pairs = RowBlocks(axis).pairs(length, None, key_rank)
            counts.add(sum((rows.stop - rows.start) * columns.stop for rows, columns in pairs))
        assert len(counts) == 1, step

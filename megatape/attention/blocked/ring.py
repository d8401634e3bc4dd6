"""Keys and values traveling around a ring of context-parallel ranks, and their gradients traveling back.

S sequences of N keys on each rank (see folding.py); W is the width of the position tensor e, 0 without it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from megatape.distributed.asynchronous import AsyncShift
from megatape.distributed.mesh import Axis


def keys_of_all_ranks(
    keys: Tensor, values: Tensor, dtype: torch.dtype, context_axis: Axis
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield each rank with its keys and values, starting with this rank. The next ones arrive while the caller computes.

    Args:
        keys: This rank's keys, [S, N, R] in float32.
        values: This rank's values, [S, N, R + W] in float32.
        dtype: Data type for sending.
        context_axis: Context-parallel ranks.
    """
    num_ranks = context_axis.size
    if num_ranks == 1:
        yield context_axis.rank, keys, values
        return
    packed = _pack(keys, values).to(dtype)
    for step in range(num_ranks):
        is_last = step + 1 == num_ranks
        shift = None if is_last else AsyncShift(packed, context_axis)
        yield (context_axis.rank - step) % num_ranks, keys, values
        if shift is not None:
            packed = shift.wait()
            keys, values = _unpack(packed, keys, values)


class KeyGradients:
    """Sums gradients of keys and values: this rank's locally, those of other ranks on the way back to them.

    Args:
        dtype: Data type for sending.
        context_axis: Context-parallel ranks.
    """

    def __init__(self, dtype: torch.dtype, context_axis: Axis) -> None:
        self.dtype = dtype
        self.context_axis = context_axis
        self.num_added = 0
        self.own: tuple[Tensor, Tensor] | None = None
        # Sum of the previous ranks' gradients of the same keys and values.
        self.returning: AsyncShift | None = None

    def add(self, key_rank: int, d_keys: Tensor, d_values: Tensor) -> None:
        """Add gradients from this rank's rows.

        Args:
            key_rank: Rank holding the keys and values, in the order of `keys_of_all_ranks`.
            d_keys: Gradient of the keys, [S, N, R].
            d_values: Gradient of the values, [S, N, R + W].
        """
        self.num_added += 1
        if key_rank == self.context_axis.rank:
            self.own = d_keys, d_values
            return
        total = _pack(d_keys, d_values)
        if self.returning is not None:
            total += self.returning.wait()
        # The caller has nothing to compute after the last addition.
        overlap = self.num_added < self.context_axis.size
        self.returning = AsyncShift(total.to(self.dtype), self.context_axis, overlap)

    def finish(self) -> tuple[Tensor, Tensor]:
        """Return the complete gradients of this rank's keys and values."""
        assert self.own is not None
        d_keys, d_values = self.own
        if self.returning is not None:
            d_keys_elsewhere, d_values_elsewhere = _unpack(self.returning.wait(), d_keys, d_values)
            d_keys += d_keys_elsewhere
            d_values += d_values_elsewhere
        return d_keys, d_values


def _pack(keys: Tensor, values: Tensor) -> Tensor:
    """Join keys and values in one dimension."""
    return torch.cat([keys.flatten(), values.flatten()])


def _unpack(packed: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the packed keys and values in float32, in the shapes of `keys` and `values`."""
    packed_keys, packed_values = packed.float().split([keys.numel(), values.numel()])
    return packed_keys.view_as(keys), packed_values.view_as(values)

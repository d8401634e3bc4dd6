"""A rank's run of elements in a whole tensor, converted to and from blocks of rows and columns."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.nn.parameters import Shard, matrix_shape
from megatape.utils.values.rounding import divide_up


@dataclass(frozen=True)
class Piece:
    """Run of elements in a rank's shard of a whole tensor: a parameter, or its optimizer state.

    Attributes:
        shape: Shape before sharding.
        shard: Rows and columns in the rank's shard.
        start: Index of the first element in the shard.
        values: Elements, flat. Empty if the rank holds none, or another rank contributes the same elements.
    """

    shape: tuple[int, ...]
    shard: Shard
    start: int
    values: Tensor

    def gather(self, destination: int, device: torch.device, group: dist.ProcessGroup | None) -> Tensor | None:
        """Gather the whole float32 tensor from all ranks' pieces. Collective over the group.

        Args:
            destination: Rank receiving the tensor.
            device: Device that the group communicates on.
            group: Ranks holding pieces.

        Returns:
            The tensor on rank `destination`, or None on the others.
        """
        full = torch.zeros(matrix_shape(self.shape), dtype=torch.float32, device=device)
        self.add_to(full)
        # Every element is zero on all ranks except its owner, so the sum is the whole tensor.
        dist.reduce(full, destination, group=group)
        if dist.get_rank() != destination:
            return None
        return full.view(self.shape)

    def add_to(self, full: Tensor) -> None:
        """Add the elements to the whole tensor [rows, columns]."""
        size = self.values.numel()
        if not size:
            return
        shard = self.shard
        first_row, end_row = self._rows()
        block = full.new_zeros((end_row - first_row) * shard.width)
        offset = self.start - first_row * shard.width
        block[offset : offset + size].copy_(self.values)
        # Rows beyond the whole tensor are padding.
        target = full[shard.rows.start + first_row : shard.rows.start + end_row, shard.columns]
        target += block.view(-1, shard.width)[: target.shape[0]]

    def extract(self, read: Callable[[slice, slice], Tensor]) -> Tensor:
        """Return this run's elements, flat, from a whole tensor. Padding is zero.

        Args:
            read: Reads rows and columns from the whole tensor.
        """
        size = self.values.numel()
        if not size:
            return torch.empty(0)
        shard = self.shard
        first_row, end_row = self._rows()
        rows = slice(shard.rows.start + first_row, min(shard.rows.start + end_row, self.shape[0]))
        if rows.start < rows.stop:
            unpadded = read(rows, shard.columns)
        else:
            unpadded = torch.empty(0, shard.width)
        block = unpadded.new_zeros(end_row - first_row, shard.width)
        block[: len(unpadded)] = unpadded
        offset = self.start - first_row * shard.width
        return block.view(-1)[offset : offset + size]

    def _rows(self) -> tuple[int, int]:
        """Return the first row with an element of this run, and the row after the last one, counting in the shard."""
        width = self.shard.width
        end = self.start + self.values.numel()
        return self.start // width, divide_up(end, width)

"""Interfaces for reading whole tensors into a run, and for gathering them into a checkpoint."""

from collections.abc import Collection, Mapping
from typing import Protocol

import torch.distributed as dist
from torch import Tensor


class ReadBlock(Protocol):
    """Function reading a block from a whole tensor: a checkpoint's, other weights, or an initialization rule."""

    def __call__(self, kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice, /) -> Tensor:
        """Read some rows and columns of a tensor.

        Args:
            kind: Tensor kind.
            name: Parameter name.
            shape: Shape before sharding.
            rows: Rows to read.
            columns: Columns to read. A vector has one column.

        Returns:
            float32 [rows, columns].
        """


class TensorSource(Protocol):
    """Whole tensors of a run, gathered from the ranks holding their parts. Checkpoints are written from it."""

    @property
    def group(self) -> dist.ProcessGroup | None:
        """Process group for `gather`, or None for the one that training uses."""

    @property
    def parameters(self) -> Collection[str]:
        """Parameter names."""

    @property
    def names_by_kind(self) -> Mapping[str, Collection[str]]:
        """Kind of tensor -> names of the parameters that have one."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a parameter's shape before sharding."""

    def gather(self, name: str, kind: str, destination: int) -> Tensor | None:
        """Gather a whole float32 tensor on rank `destination`. Returns None on other ranks. Collective."""

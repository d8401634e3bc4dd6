"""Interfaces of the tensors of a run: where whole tensors are read from, and where they are gathered for a checkpoint."""

from collections.abc import Collection, Mapping
from typing import Protocol

import torch.distributed as dist
from torch import Tensor


class ReadBlock(Protocol):
    """Function that reads a block of a whole tensor: from a checkpoint, other weights, or a rule for initial values."""

    def __call__(self, kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice, /) -> Tensor:
        """Read some rows and columns of a tensor.

        Args:
            kind: Kind of tensor.
            name: Name of the parameter.
            shape: Shape of the whole tensor.
            rows: Rows to read.
            columns: Columns to read. A vector has one column.

        Returns:
            float32 [rows, columns].
        """


class TensorSource(Protocol):
    """Whole tensors of a run, gathered from the ranks that hold their parts. A checkpoint is written from one."""

    @property
    def group(self) -> dist.ProcessGroup | None:
        """Ranks over which `gather` exchanges, None for those of training."""

    @property
    def parameters(self) -> Collection[str]:
        """Names of the parameters."""

    @property
    def names_by_kind(self) -> Mapping[str, Collection[str]]:
        """Kind of tensor -> names of the parameters that have one."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the whole shape of a parameter."""

    def gather(self, name: str, kind: str, destination: int) -> Tensor | None:
        """Gather a whole float32 tensor on rank `destination`. Returns None on other ranks. Collective."""

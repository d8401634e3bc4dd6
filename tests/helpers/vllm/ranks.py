"""Tensor-parallel ranks as threads, and the batch that each of them runs."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Chunk(NamedTuple):
    """New tokens of one request in a batch."""

    request: str
    num_tokens: int


@dataclass
class Ranks:
    """Tensor-parallel ranks, which exchange tensors.

    Attributes:
        size: Number of ranks.
        parts: Tensor of each rank in the present exchange.
        barrier: Barrier of the ranks.
    """

    size: int
    parts: list[Any] = field(default_factory=list)
    barrier: threading.Barrier = field(init=False)

    def __post_init__(self) -> None:
        self.parts = [None] * self.size
        self.barrier = threading.Barrier(self.size)

    def exchange(self, rank: int, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks."""
        self.parts[rank] = tensor
        self.barrier.wait()
        parts = list(self.parts)
        self.barrier.wait()
        return parts


class Current(threading.local):
    """State of this thread: its ranks, its number among them, and the chunks of the batch that it runs."""

    ranks = Ranks(1)
    rank = 0
    chunks: Sequence[Chunk] = ()


CURRENT = Current()


def get_tensor_model_parallel_rank() -> int:
    return CURRENT.rank


def get_tensor_model_parallel_world_size() -> int:
    return CURRENT.ranks.size


def tensor_model_parallel_all_gather(input_: Tensor, dim: int = -1) -> Tensor:
    return torch.cat(CURRENT.ranks.exchange(CURRENT.rank, input_), dim)

"""Copies the training state to host memory, from where a background thread writes checkpoints."""

from collections.abc import Collection
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.zero.kinds import WEIGHT
from megatape.zero.piece import Piece
from megatape.zero.state import ZeroState

# Alignment of copies in host memory, in bytes.
ALIGNMENT = 64

# Kind and name of a tensor.
Key = tuple[str, str]


class Snapshot:
    """Master weights and optimizer state at one step, copied to host memory: a TensorSource, like ZeroState.

    A rank copies the pieces that it contributes. The next snapshot uses the same memory, because allocating it, and pinning it
    for a GPU, takes longer than filling it.

    Args:
        group: Process group with all ranks, for CPU tensors.

    Attributes:
        group, parameters, names_by_kind: See TensorSource.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.parameters: list[str] = []
        self.names_by_kind: dict[str, list[str]] = {}
        self._pieces: dict[Key, Piece] = {}
        self._copies: list[Tensor] = []

    def take(self, state: ZeroState, left_out: Collection[str]) -> None:
        """Copy the present state to host memory, except the parameters in `left_out`. Returns when the copy is complete."""
        self.parameters = [name for name in state.parameters if name not in left_out]
        self.names_by_kind = {}
        for kind, names in state.names_by_kind.items():
            self.names_by_kind[kind] = [name for name in names if name not in left_out]
        pieces = self._contributions(state)
        if pieces.keys() != self._pieces.keys():
            self._copies = host_copies([piece.values for piece in pieces.values()])
        self._pieces = {}
        for (key, piece), copy in zip(pieces.items(), self._copies, strict=True):
            copy.copy_(piece.values.detach(), non_blocking=True)
            self._pieces[key] = replace(piece, values=copy)
        if state.device.type == "cuda":
            torch.cuda.synchronize()

    def _contributions(self, state: ZeroState) -> dict[Key, Piece]:
        pieces: dict[Key, Piece] = {}
        for kind, names in self.names_by_kind.items():
            for name in names:
                pieces[kind, name] = state.contribution(name, kind)
        return pieces

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a parameter's shape before sharding."""
        return self._pieces[WEIGHT, name].shape

    def gather(self, name: str, kind: str, destination: int) -> Tensor | None:
        """Gather a whole float32 tensor on the CPU of rank `destination`. Returns None on other ranks. Collective."""
        return self._pieces[kind, name].gather(destination, torch.device("cpu"), self.group)


def host_copies(tensors: list[Tensor]) -> list[Tensor]:
    """Return flat tensors with the same sizes and types in one block of host memory, pinned if any tensor is on a GPU.

    The block has the size that the plan counts: torch would pin memory in powers of two only.
    """
    sizes = [_aligned(tensor.nbytes) for tensor in tensors]
    memory = torch.empty(sum(sizes), dtype=torch.uint8, device="cpu")
    if memory.nbytes and any(tensor.is_cuda for tensor in tensors):
        torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
    copies = []
    for tensor, block in zip(tensors, memory.split(sizes), strict=True):
        copies.append(block[: tensor.nbytes].view(tensor.dtype))
    return copies


def _aligned(num_bytes: int) -> int:
    """Round a size up to a multiple of ALIGNMENT."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT

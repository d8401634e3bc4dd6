"""Copies of a run's state in host memory, which a checkpoint in the background writes while training continues."""

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


class Snapshot:
    """Master weights and optimizer state of one step, copied to host memory.

    It holds the pieces that this rank contributes, behind the part of ZeroState's interface that checkpoints use. The memory is
    kept for the next snapshot: allocating it, and pinning it for a GPU, takes longer than filling it.

    Args:
        group: All ranks, for tensors on the CPU. `gather` exchanges over it.

    Attributes:
        group: As above.
        parameters: Names of the parameters in the snapshot.
        names_by_kind: Kind of tensor -> names of the parameters that have one.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.parameters: list[str] = []
        self.names_by_kind: dict[str, list[str]] = {}
        self._pieces: dict[tuple[str, str], Piece] = {}
        self._copies: list[Tensor] = []

    def take(self, state: ZeroState, left_out: Collection[str]) -> None:
        """Copy the present state to host memory, except the parameters in `left_out`. Returns when the copy is complete."""
        self.parameters = [name for name in state.parameters if name not in left_out]
        self.names_by_kind = {}
        pieces: dict[tuple[str, str], Piece] = {}
        for kind, names in state.names_by_kind.items():
            self.names_by_kind[kind] = [name for name in names if name not in left_out]
            for name in self.names_by_kind[kind]:
                pieces[kind, name] = state.contribution(name, kind)
        if pieces.keys() != self._pieces.keys():
            self._copies = host_copies([piece.values for piece in pieces.values()])
        self._pieces = {}
        for (key, piece), copy in zip(pieces.items(), self._copies, strict=True):
            copy.copy_(piece.values.detach(), non_blocking=True)
            self._pieces[key] = replace(piece, values=copy)
        if state.engine.device.type == "cuda":
            torch.cuda.synchronize()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the whole shape of a parameter."""
        return self._pieces[WEIGHT, name].shape

    def gather(self, name: str, kind: str, destination: int) -> Tensor | None:
        """Gather a whole float32 tensor on the CPU of rank `destination`. Returns None on other ranks. Collective."""
        return self._pieces[kind, name].gather(destination, torch.device("cpu"), self.group)


def host_copies(tensors: list[Tensor]) -> list[Tensor]:
    """Return flat tensors of the same sizes and types in one block of host memory, pinned if any tensor is on a GPU.

    The block has the bytes that the plan counts. torch pins memory of its own only in powers of two.
    """
    sizes = [-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors]
    memory = torch.empty(sum(sizes), dtype=torch.uint8, device="cpu")
    if memory.nbytes and any(tensor.is_cuda for tensor in tensors):
        torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
    parts = zip(tensors, memory.split(sizes), strict=True)
    return [part[: tensor.nbytes].view(tensor.dtype) for tensor, part in parts]

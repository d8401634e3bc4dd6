"""Copies the training state to host memory, from where a background thread writes checkpoints."""

import weakref
from collections.abc import Collection
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.utils.values.rounding import round_up
from megatape.zero.state.kinds import WEIGHT, TensorKey
from megatape.zero.state.piece import Piece
from megatape.zero.state.zero_state import ZeroState

# Alignment of copies in host memory, in bytes.
ALIGNMENT = 64


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
        self._pieces: dict[TensorKey, Piece] = {}
        self._copies = HostCopies([])

    def take(self, state: ZeroState, left_out: Collection[str]) -> None:
        """Copy the present state to host memory, except the parameters in `left_out`. Returns when the copy is complete."""
        self.parameters = [name for name in state.parameters if name not in left_out]
        self.names_by_kind = {}
        for kind, names in state.names_by_kind.items():
            self.names_by_kind[kind] = [name for name in names if name not in left_out]
        pieces = self._contributions(state)
        if pieces.keys() != self._pieces.keys():
            self._copies = HostCopies([piece.values for piece in pieces.values()])
        self._pieces = {}
        for (key, piece), copy in zip(pieces.items(), self._copies.tensors, strict=True):
            copy.copy_(piece.values.detach(), non_blocking=True)
            self._pieces[key] = replace(piece, values=copy)
        if state.device.type == "cuda":
            torch.cuda.synchronize()

    def _contributions(self, state: ZeroState) -> dict[TensorKey, Piece]:
        pieces: dict[TensorKey, Piece] = {}
        for kind, names in self.names_by_kind.items():
            for name in names:
                pieces[TensorKey(kind, name)] = state.contribution(name, kind)
        return pieces

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a parameter's shape before sharding."""
        return self._pieces[TensorKey(WEIGHT, name)].shape

    def gather(self, name: str, kind: str, destination: int) -> Tensor | None:
        """Gather a whole float32 tensor on the CPU of rank `destination`. Returns None on other ranks. Collective."""
        return self._pieces[TensorKey(kind, name)].gather(destination, torch.device("cpu"), self.group)


class HostCopies:
    """Memory for copies of tensors: one block of host memory, pinned if any tensor is on a GPU, until this object is dropped.

    The block has the size that the plan counts: torch would pin memory in powers of two only.

    Args:
        tensors: Tensors to copy.

    Attributes:
        tensors: For each given tensor, an uninitialized flat tensor in host memory with its number of elements and dtype.
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        sizes = [round_up(tensor.nbytes, ALIGNMENT) for tensor in tensors]
        memory = torch.empty(sum(sizes), dtype=torch.uint8, device="cpu")
        if memory.nbytes and any(tensor.is_cuda for tensor in tensors):
            torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
            # The finalizer holds the block, so memory is never freed while it is pinned.
            finalizer = weakref.finalize(self, _unpin, memory)
            # The end of the process releases all memory, and CUDA may be gone by then.
            finalizer.atexit = False
        self.tensors: list[Tensor] = []
        for tensor, block in zip(tensors, memory.split(sizes), strict=True):
            self.tensors.append(block[: tensor.nbytes].view(tensor.dtype))


def _unpin(memory: Tensor) -> None:
    """Unpin a block of host memory."""
    torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(memory.data_ptr()))

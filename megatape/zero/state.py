"""Float32 master weights and optimizer state under ZeRO and tensor parallelism, seen as blocks of whole parameters.

Initialization, checkpoints and export go through this view, which is the same at every stage and
topology. A parameter is a matrix (a vector is a single column). A tensor-parallel rank has a share of its
rows or columns, or all of it, and ZeRO gives each rank one contiguous run of the elements of that share.
Where a stage keeps that run is in zero/layouts.py.
"""

from collections.abc import Callable
from typing import Any

import deepspeed
import torch
from torch import Tensor

from megatape.parallel.mesh import Mesh
from megatape.parallel.parameters import Share, share_of, whole_shape
from megatape.registry import OptimizerEntry
from megatape.runtime.topology import Topology
from megatape.zero.internals import local_shape
from megatape.zero.layouts import LAYOUTS
from megatape.zero.piece import Piece

WEIGHT = "weight"

# Reads some rows and columns of a whole parameter: (kind, name, shape, rows, columns) -> float32 [rows, columns].
Reader = Callable[[str, str, tuple[int, ...], slice, slice], Tensor]


class ZeroState:
    """Access to the master weights and optimizer state of an initialized DeepSpeed engine. Missing
    optimizer state is created as zeros.

    tensors: the names of parameters by kind, WEIGHT or a tensor that the optimizer keeps for each weight. A frozen parameter
    has no optimizer state and no master weight: its compute weight counts as that, and the data axis divides it at stage 3
    only. group: over which `gather` exchanges, None for that of training."""

    group = None

    def __init__(
        self,
        engine: deepspeed.DeepSpeedEngine,
        optimizer: torch.optim.Optimizer,
        topology: Topology,
        mesh: Mesh,
        entry: OptimizerEntry,
    ) -> None:
        self.engine, self.optimizer, self.topology, self.mesh = engine, optimizer, topology, mesh
        self._layout = LAYOUTS[engine.zero_optimization_stage()](engine)
        # Any: DeepSpeed attaches its bookkeeping to the parameters.
        self.parameters: dict[str, Any] = dict(engine.module.named_parameters())
        trained = [name for name, parameter in self.parameters.items() if parameter.requires_grad]
        self.tensors = {WEIGHT: list(self.parameters)} | dict.fromkeys(entry.state, trained)
        self.counts_steps = entry.counts_steps
        for flat in self._layout.flats():
            state = optimizer.state[flat]
            if not state:
                state |= {kind: torch.zeros_like(flat) for kind in entry.state}
                if entry.counts_steps:
                    state["step"] = torch.zeros((), dtype=torch.float32, device=flat.device)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the whole parameter, even if this rank holds only a share."""
        return whole_shape(self.parameters[name], local_shape(self.parameters[name]))

    def gather(self, name: str, kind: str, destination: int) -> Tensor | None:
        """The whole float32 tensor on rank `destination`, None elsewhere. Collective over all ranks."""
        return self.contribution(name, kind).gather(destination, self.engine.device, self.group)

    def contribution(self, name: str, kind: str) -> Piece:
        """What this rank adds to the whole tensor."""
        start, values = self.piece(name, kind)
        return Piece(self.shape(name), self._share(name), start, values if self._contributes(name) else values[:0])

    def load(self, read: Reader, step: int) -> None:
        """Overwrite master weights, optimizer state and compute weights with what `read` returns for this rank's pieces.

        step: the optimizer's step count."""
        for kind, names in self.tensors.items():
            for name in names:
                start, piece = self.piece(name, kind)
                if piece.numel():
                    piece.copy_(self._read(read, kind, name, start, piece.numel()))
        if self.counts_steps:
            for state in self.optimizer.state.values():
                state["step"].fill_(step)
        self._layout.publish([self.parameters[name] for name in self.tensors[WEIGHT] if self.parameters[name].requires_grad])

    def _read(self, read: Reader, kind: str, name: str, start: int, size: int) -> Tensor:
        """`size` elements of this rank's share from `start` on, as a flat tensor; padding is zero."""
        shape, share = self.shape(name), self._share(name)
        first, last = start // share.width, -(-(start + size) // share.width)
        rows = slice(share.rows.start + first, min(share.rows.start + last, shape[0]))
        block = torch.zeros(last - first, share.width)
        if rows.start < rows.stop:
            block[: rows.stop - rows.start] = read(kind, name, shape, rows, share.columns)
        return block.view(-1)[start - first * share.width :][:size]

    def is_divided(self, name: str) -> bool:
        """Whether the tensor-parallel ranks divide the parameter; if not, each holds all of it."""
        return hasattr(self.parameters[name], "partition_dim")

    def piece(self, name: str, kind: str) -> tuple[int, Tensor]:
        """This rank's run of elements of its share: its start, and a writable view."""
        held = self._layout.fragment(self.parameters[name])
        if held is None:
            return 0, torch.empty(0)
        source = held.flat.data if kind == WEIGHT else self.optimizer.state[held.flat][kind]
        return held.start, source.view(-1).narrow(0, held.offset, held.size)

    def is_replicated(self, name: str) -> bool:
        """Whether every data-parallel rank holds the same piece of the parameter."""
        return self._layout.is_replicated(self.parameters[name])

    def _share(self, name: str) -> Share:
        return share_of(self.parameters[name], local_shape(self.parameters[name]), self.mesh["tensor"])

    def _contributes(self, name: str) -> bool:
        """Whether this rank's piece counts: where several ranks hold the same one, that of the first does."""
        first_replica = not self.is_replicated(name) or self.mesh["replicate"].rank == 0
        return first_replica and (self.is_divided(name) or self.mesh["tensor"].rank == 0)

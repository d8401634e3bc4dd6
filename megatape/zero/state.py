"""Float32 master weights and optimizer state under ZeRO and tensor parallelism, seen as blocks of whole parameters.

Initialization, checkpoints and export go through this view, which is the same at every stage and
topology. A parameter is a matrix (a vector is a single column). A tensor-parallel rank has a share of its
rows or columns, or all of it, and ZeRO gives each rank one contiguous run of the elements of that share.
Where a stage keeps that run is in zero/internals.py.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from megatape.config import OptimizerConfig
from megatape.distributed.mesh import Mesh
from megatape.distributed.topology import Topology
from megatape.errors import UserError
from megatape.nn.parameters import Share, matrix, settings, share_of
from megatape.registry import OPTIMIZERS
from megatape.zero.internals import LAYOUTS, Fragment, local_shape
from megatape.zero.matrix_state import MatrixState

WEIGHT = "weight"
EMA = "ema"  # average of a trained weight over the updates, kept like state of the optimizer

CHUNK = 2**24  # elements that are copied at a time
ALIGNMENT = 64  # bytes, of copies in host memory

# Reads some rows and columns of a whole tensor: (kind, name, shape, rows, columns) -> float32 [rows, columns].
Reader = Callable[[str, str, tuple[int, ...], slice, slice], Tensor]


@dataclass(frozen=True)
class Piece:
    """A run of elements of a rank's share of a whole tensor: a parameter, or state that is kept for it.

    Attributes:
        shape: of the whole tensor.
        share: the rank's rows and columns of it.
        start: index of the first element in the share.
        values: the elements, flat; none where the rank holds nothing or another contributes the same.
    """

    shape: tuple[int, ...]
    share: Share
    start: int
    values: Tensor

    def gather(self, destination: int, device: torch.device, group: dist.ProcessGroup | None) -> Tensor | None:
        """The whole float32 tensor of all ranks' pieces on rank `destination`, None elsewhere.

        Collective over the group, whose tensors are on `device`.
        """
        whole = torch.zeros(matrix(self.shape), dtype=torch.float32, device=device)
        self.add_to(whole)
        dist.reduce(whole, destination, group=group)  # every element is zero on all ranks except its owner
        return whole.view(self.shape) if dist.get_rank() == destination else None

    def add_to(self, whole: Tensor) -> None:
        """Add the elements to the whole tensor [rows, columns]."""
        share = self.share
        size = self.values.numel()
        if not size:
            return
        first, last = self._rows()
        block = whole.new_zeros((last - first) * share.width)
        block[self.start - first * share.width :][:size].copy_(self.values)
        target = whole[share.rows.start + first : share.rows.start + last, share.columns]
        target += block.view(-1, share.width)[: target.shape[0]]  # rows beyond the whole are padding

    def cut(self, read: Callable[[slice, slice], Tensor]) -> Tensor:
        """The elements of this run, flat, from what `read` returns for rows and columns of a whole tensor; padding is zero."""
        share = self.share
        size = self.values.numel()
        if not size:
            return torch.empty(0)
        first, last = self._rows()
        rows = slice(share.rows.start + first, min(share.rows.start + last, self.shape[0]))
        found = read(rows, share.columns) if rows.start < rows.stop else torch.empty(0, share.width)
        block = found.new_zeros(last - first, share.width)
        block[: len(found)] = found
        return block.view(-1)[self.start - first * share.width :][:size]

    def _rows(self) -> tuple[int, int]:
        """First row of the share with an element of this run, and the one after the last."""
        width = self.share.width
        return self.start // width, -(-(self.start + self.values.numel()) // width)


class ZeroState:
    """Access to the master weights and optimizer state of an initialized DeepSpeed engine.

    Missing optimizer state is created as zeros.

    A frozen parameter has no optimizer state and no master weight: its compute weight counts as that,
    and the data axis divides it at stage 3 only.

    Attributes:
        parameters: the module's, by name.
        tensors: names of parameters by kind: WEIGHT, or a tensor that the optimizer keeps for each.
        matrix_state: what the optimizer keeps for whole matrices, if it updates any.
        group: over which `gather` exchanges; None for that of training.
    """

    group = None

    def __init__(
        self,
        engine: deepspeed.DeepSpeedEngine,
        optimizer: torch.optim.Optimizer,
        topology: Topology,
        mesh: Mesh,
        config: OptimizerConfig,
    ) -> None:
        self.engine = engine
        self.optimizer = optimizer
        self.topology = topology
        self.mesh = mesh
        self.ema_decay = config.ema_decay
        self._kind = config.kind
        entry = OPTIMIZERS[config.kind]
        self._layout = LAYOUTS[engine.zero_optimization_stage()](engine)
        # Any: DeepSpeed attaches its bookkeeping to the parameters.
        self.parameters: dict[str, Any] = dict(engine.module.named_parameters())
        self._trained = [name for name, parameter in self.parameters.items() if parameter.requires_grad]
        whole = {name for group in optimizer.param_groups if group["whole"] for name in group["names"]}
        shapes = {name: self.shape(name) for name in self._trained if name in whole}
        self.matrix_state = MatrixState(shapes, entry, topology, torch.device(engine.device))
        others = [name for name in self._trained if name not in shapes]
        self.tensors = {WEIGHT: list(self.parameters)} | dict.fromkeys(entry.state, others) | self.matrix_state.kinds()
        self.counts_steps = entry.counts_steps
        updated_whole = {id(held.flat) for name in shapes if (held := self.fragment(name))}
        for flat in self._layout.flats():
            state = optimizer.state[flat]
            if not state and id(flat) not in updated_whole:
                state |= {kind: torch.zeros_like(flat) for kind in entry.state}
                if entry.counts_steps:
                    state["step"] = torch.zeros((), dtype=torch.float32, device=flat.device)
            if self.ema_decay:
                state[EMA] = torch.zeros_like(flat)
        if self.ema_decay:
            self.tensors[EMA] = self._trained

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the whole parameter, even if this rank holds only a share."""
        return settings(self.parameters[name]).shape

    def gather(self, name: str, kind: str, destination: int) -> Tensor | None:
        """The whole float32 tensor on rank `destination`, None elsewhere. Collective over all ranks."""
        return self.contribution(name, kind).gather(destination, self.engine.device, self.group)

    def contribution(self, name: str, kind: str) -> Piece:
        """This rank's piece; without values where another rank holds the same."""
        piece = self.piece(name, kind)
        if self.matrix_state.shape(name, kind):  # on its owner only
            return piece
        is_first = all(self.mesh[axis].rank == 0 for axis in self.shared_axes(name))
        return piece if is_first else replace(piece, values=piece.values[:0])

    def load(self, read: Reader, step: int) -> None:
        """Overwrite master weights, optimizer state and compute weights with what `read` returns for this rank's pieces.

        step: the optimizer's step count.
        """
        for kind, names in self.tensors.items():
            for name in names:
                piece = self.piece(name, kind)
                if piece.values.numel():
                    piece.values.copy_(piece.cut(partial(read, kind, name, piece.shape)))
        if self.counts_steps:
            for state in self.optimizer.state.values():
                if "step" in state:  # not in that of flat tensors of matrices
                    state["step"].fill_(step)
        self._publish()

    def check_kept(self) -> None:
        """Raise UserError if the optimizer keeps what its entry does not name: a resumed run would go on without it."""
        kept = {kind for flat in self._layout.flats() for kind in self.optimizer.state[flat]}
        named = {*self.tensors, *(["step"] if self.counts_steps else [])}
        if lost := sorted(kept - named):
            raise UserError(
                f"optimizer {self._kind} keeps {', '.join(lost)}, which checkpoints would not have: name tensors in `state` of "
                "its OptimizerEntry, as torch's state_dict does, and set `counts_steps` if it keeps `step`"
            )

    def update_ema(self) -> None:
        """Count the weights of an update in their average, if one is kept."""
        if self.ema_decay and (pairs := self._averaged()):
            weights, averages = zip(*pairs, strict=True)
            get_ema_multi_avg_fn(self.ema_decay)(averages, weights, None)

    @contextmanager
    def ema_weights(self) -> Iterator[None]:
        """Within it, the model computes with the average of its weights. Collective; no step may be made."""
        self._exchange_ema()
        try:
            yield
        finally:
            self._exchange_ema()

    @torch.no_grad()
    def _exchange_ema(self) -> None:
        for weights, averages in self._averaged():
            for weight, average in zip(weights.split(CHUNK), averages.split(CHUNK), strict=True):
                held = weight.clone()
                weight.copy_(average)
                average.copy_(held)
        self._publish()

    def _averaged(self) -> list[tuple[Tensor, Tensor]]:
        """This rank's weights, as the optimizer holds them, and their averages; both flat."""
        flats = self._layout.flats()
        return [(flat.data.view(-1), self.optimizer.state[flat][EMA].view(-1)) for flat in flats]

    def _publish(self) -> None:
        """Copy the master weights to the compute weights. Collective."""
        self._layout.publish([self.parameters[name] for name in self._trained])

    def piece(self, name: str, kind: str) -> Piece:
        """This rank's run of elements, with writable values."""
        if shape := self.matrix_state.shape(name, kind):
            rows, columns = matrix(shape)
            return Piece(shape, Share(slice(0, rows), slice(0, columns)), 0, self.matrix_state.values(name, kind))
        held = self.fragment(name)
        if held is None:
            return Piece(self.shape(name), self._share(name), 0, torch.empty(0))
        source = None if kind == WEIGHT else self.optimizer.state[held.flat][kind]
        return Piece(self.shape(name), self._share(name), held.start, held.values(source))

    def gradient(self, name: str) -> Tensor:
        """This rank's run of elements of the gradient, flat, inside a step of the optimizer."""
        held = self.fragment(name)
        if held is None:
            return torch.empty(0)
        assert held.flat.grad is not None, f"no gradient of {name}"
        return held.values(held.flat.grad)

    def fragment(self, name: str) -> Fragment | None:
        """Where this rank keeps its part of a parameter; None if it has no part."""
        return self._layout.fragment(self.parameters[name])

    def shared_axes(self, name: str) -> tuple[str, ...]:
        """The axes of more than one rank over which each has the same piece of the parameter."""
        parameter = self.parameters[name]
        shared = {"replicate": self._layout.is_replicated(parameter), "tensor": not hasattr(parameter, "partition_dim")}
        return tuple(axis for axis, is_shared in shared.items() if is_shared and self.mesh[axis].size > 1)

    def accumulated_gradient(self, name: str) -> Tensor | None:
        """Return the gradient of this rank's part of a trained parameter, see Layout.accumulated_gradient."""
        return self._layout.accumulated_gradient(self.parameters[name])

    def set_accumulated_gradient(self, name: str, value: Tensor) -> None:
        """Replace the gradient of this rank's part of a trained parameter, see Layout.set_accumulated_gradient."""
        self._layout.set_accumulated_gradient(self.parameters[name], value)

    def _share(self, name: str) -> Share:
        return share_of(self.parameters[name], local_shape(self.parameters[name]), self.mesh["tensor"])


class Snapshot:
    """Master weights and optimizer state as they were at one step, while training goes on.

    Copies in host memory of what this rank contributes, with what a checkpoint needs of ZeroState's interface.

    The memory is kept for the next snapshot: to get it anew, and to pin it for a GPU, takes longer than to fill it.
    group: over which `gather` exchanges, of all ranks and the CPU's tensors.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.parameters: list[str] = []
        self.tensors: dict[str, list[str]] = {}
        self._pieces: dict[tuple[str, str], Piece] = {}
        self._copies: list[Tensor] = []

    def take(self, state: ZeroState, left_out: Collection[str]) -> None:
        """Be what `state` is now, without the parameters that are left out. Returns when all of it is copied."""
        self.parameters = [name for name in state.parameters if name not in left_out]
        self.tensors = {kind: [name for name in names if name not in left_out] for kind, names in state.tensors.items()}
        pieces = {(kind, name): state.contribution(name, kind) for kind, names in self.tensors.items() for name in names}
        if pieces.keys() != self._pieces.keys():
            self._copies = _host_copies([piece.values for piece in pieces.values()])
        self._pieces = {}
        for (key, piece), copy in zip(pieces.items(), self._copies, strict=True):
            copy.copy_(piece.values.detach(), non_blocking=True)
            self._pieces[key] = replace(piece, values=copy)
        if state.engine.device.type == "cuda":
            torch.cuda.synchronize()

    def shape(self, name: str) -> tuple[int, ...]:
        """As ZeroState's."""
        return self._pieces[WEIGHT, name].shape

    def gather(self, name: str, kind: str, destination: int) -> Tensor | None:
        """As ZeroState's, on the CPU."""
        return self._pieces[kind, name].gather(destination, torch.device("cpu"), self.group)


def _host_copies(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors like these, flat, in one run of host memory, which is pinned where any of them is on a GPU.

    Their bytes are those that the plan counts. torch pins memory of its own only in powers of two.
    """
    sizes = [-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors]
    memory = torch.empty(sum(sizes), dtype=torch.uint8, device="cpu")
    if memory.nbytes and any(tensor.is_cuda for tensor in tensors):
        torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
    parts = zip(tensors, memory.split(sizes), strict=True)
    return [part[: tensor.nbytes].view(tensor.dtype) for tensor, part in parts]

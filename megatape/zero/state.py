"""Float32 master weights and optimizer state under ZeRO and tensor parallelism, seen as blocks of whole parameters.

Initialization, checkpoints and exports go through this view, which is the same at every stage and topology. A parameter is a
matrix (a vector is a single column). A tensor-parallel rank has a share of its rows or columns, or all of it, and ZeRO gives
each rank one contiguous run of the elements of that share (zero/stages/).
"""

from dataclasses import replace
from functools import partial
from typing import Any

import deepspeed
import torch
from torch import Tensor

from megatape.config import OptimizerConfig
from megatape.distributed.mesh import Mesh
from megatape.distributed.topology import Topology
from megatape.errors import UserError
from megatape.nn.parameters import Share, matrix, share_of, spec_of
from megatape.registry import OPTIMIZERS
from megatape.zero.kinds import EMA, WEIGHT
from megatape.zero.matrix_state import MatrixState
from megatape.zero.moving_average import MovingAverage
from megatape.zero.piece import Piece
from megatape.zero.stages.fragment import Fragment, local_shape
from megatape.zero.stages.stage import ZeroStage
from megatape.zero.tensors import ReadBlock


class ZeroState:
    """Access to the master weights and optimizer state of an initialized DeepSpeed engine.

    Missing optimizer state is created as zeros. A frozen parameter has no optimizer state and no master weight: its compute
    weight takes that place, and the data axis divides it at stage 3 only.

    Args:
        engine: DeepSpeed's engine.
        stage: ZeRO stage of the engine.
        optimizer: Optimizer given to DeepSpeed.
        topology: All ranks.
        mesh: Mesh of the ranks.
        config: Configuration of the optimizer.

    Attributes:
        parameters: Parameters of the module, by name.
        names_by_kind: Kind of tensor (WEIGHT, EMA, or one of the optimizer) -> names of the parameters that have one.
        matrix_state: Optimizer state of whole matrices, if the optimizer updates any.
        average: Moving average of the weights, None if none is kept.
        group: Ranks over which `gather` exchanges, None for those of training.
    """

    group = None

    def __init__(
        self,
        engine: deepspeed.DeepSpeedEngine,
        stage: ZeroStage,
        optimizer: torch.optim.Optimizer,
        topology: Topology,
        mesh: Mesh,
        config: OptimizerConfig,
    ) -> None:
        self.engine = engine
        self.optimizer = optimizer
        self.topology = topology
        self.mesh = mesh
        self._kind = config.kind
        self._stage = stage
        # Any: DeepSpeed attaches its bookkeeping to the parameters.
        self.parameters: dict[str, Any] = dict(engine.module.named_parameters())
        self._trained = [name for name, parameter in self.parameters.items() if parameter.requires_grad]

        entry = OPTIMIZERS[config.kind]
        self.counts_steps = entry.counts_steps
        whole = self._whole_matrices()
        shapes = {name: self.shape(name) for name in whole}
        self.matrix_state = MatrixState(shapes, entry, topology, torch.device(engine.device))
        others = [name for name in self._trained if name not in shapes]
        self.names_by_kind = {WEIGHT: list(self.parameters)}
        for kind in entry.state:
            self.names_by_kind[kind] = others
        self.names_by_kind |= self.matrix_state.kinds()
        self.average: MovingAverage | None = None
        if config.ema_decay:
            self.names_by_kind[EMA] = self._trained
            trained = self._trained_parameters()
            self.average = MovingAverage(config.ema_decay, self._stage, optimizer, trained)
        self._create_state(entry.state, whole)

    def _trained_parameters(self) -> list[Any]:
        return [self.parameters[name] for name in self._trained]

    def _whole_matrices(self) -> list[str]:
        """Return the names of the trained weights that the optimizer updates as whole matrices."""
        whole: set[str] = set()
        for group in self.optimizer.param_groups:
            if group["whole"]:
                whole.update(group["names"])
        return [name for name in self._trained if name in whole]

    def _create_state(self, kinds: tuple[str, ...], whole: list[str]) -> None:
        """Create missing optimizer state as zeros.

        Args:
            kinds: Kinds of tensors that the optimizer keeps for weights that it updates element by element.
            whole: Names of the weights that it updates as whole matrices.
        """
        updated_whole = set()
        for name in whole:
            fragment = self.fragment(name)
            if fragment is not None:
                updated_whole.add(id(fragment.flat))
        for flat in self._stage.flats():
            state = self.optimizer.state[flat]
            if not state and id(flat) not in updated_whole:
                for kind in kinds:
                    state[kind] = torch.zeros_like(flat)
                if self.counts_steps:
                    state["step"] = torch.zeros((), dtype=torch.float32, device=flat.device)
            if self.average is not None:
                state[EMA] = torch.zeros_like(flat)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the whole parameter, even if this rank holds only a share."""
        return spec_of(self.parameters[name]).shape

    def gather(self, name: str, kind: str, destination: int) -> Tensor | None:
        """Gather a whole float32 tensor on rank `destination`. Returns None on other ranks. Collective over all ranks."""
        return self.contribution(name, kind).gather(destination, self.engine.device, self.group)

    def contribution(self, name: str, kind: str) -> Piece:
        """Return this rank's piece, without values if another rank holds the same ones."""
        piece = self.piece(name, kind)
        if self.matrix_state.shape(name, kind):
            # Only the owner of a matrix holds its state.
            return piece
        if all(self.mesh[axis].rank == 0 for axis in self.shared_axes(name)):
            return piece
        return replace(piece, values=piece.values[:0])

    def load(self, read: ReadBlock, step: int) -> None:
        """Overwrite master weights, optimizer state and compute weights.

        Args:
            read: Reads the blocks that contain this rank's pieces.
            step: Step count of the optimizer.
        """
        for kind, names in self.names_by_kind.items():
            for name in names:
                piece = self.piece(name, kind)
                if piece.values.numel():
                    piece.values.copy_(piece.cut(partial(read, kind, name, piece.shape)))
        if self.counts_steps:
            for state in self.optimizer.state.values():
                # The state of flat tensors of matrices has no step count.
                if "step" in state:
                    state["step"].fill_(step)
        self._stage.copy_masters_to_weights(self._trained_parameters())

    def check_kept(self) -> None:
        """Check that the optimizer keeps no state besides that of its registry entry. A resumed run would lose it.

        Raises:
            UserError: The optimizer keeps more.
        """
        named = set(self.names_by_kind)
        if self.counts_steps:
            named.add("step")
        kept: set[str] = set()
        for flat in self._stage.flats():
            kept.update(self.optimizer.state[flat])
        lost = sorted(kept - named)
        if lost:
            raise UserError(
                f"optimizer {self._kind} keeps {', '.join(lost)}, which checkpoints would not have: name tensors in `state` of "
                "its OptimizerEntry, as torch's state_dict does, and set `counts_steps` if it keeps `step`"
            )

    def piece(self, name: str, kind: str) -> Piece:
        """Return this rank's run of elements, with writable values."""
        matrix_shape = self.matrix_state.shape(name, kind)
        if matrix_shape:
            rows, columns = matrix(matrix_shape)
            everything = Share(slice(0, rows), slice(0, columns))
            return Piece(matrix_shape, everything, 0, self.matrix_state.values(name, kind))
        parameter = self.parameters[name]
        share = share_of(parameter, local_shape(parameter), self.mesh["tensor"])
        fragment = self.fragment(name)
        if fragment is None:
            return Piece(self.shape(name), share, 0, torch.empty(0))
        if kind == WEIGHT:
            values = fragment.values()
        else:
            values = fragment.values(self.optimizer.state[fragment.flat][kind])
        return Piece(self.shape(name), share, fragment.start, values)

    def gradient(self, name: str) -> Tensor:
        """Return this rank's run of elements of the gradient, flat. Only valid inside a step of the optimizer."""
        fragment = self.fragment(name)
        if fragment is None:
            return torch.empty(0)
        assert fragment.flat.grad is not None, f"no gradient of {name}"
        return fragment.values(fragment.flat.grad)

    def fragment(self, name: str) -> Fragment | None:
        """Return the location of this rank's part of a parameter; None if it has no part."""
        return self._stage.fragment(self.parameters[name])

    def shared_axes(self, name: str) -> tuple[str, ...]:
        """Return the axes of more than one rank over which all ranks have the same piece of the parameter."""
        parameter = self.parameters[name]
        shared = []
        if self._stage.is_replicated(parameter):
            shared.append("replicate")
        if not hasattr(parameter, "partition_dim"):
            shared.append("tensor")
        return tuple(axis for axis in shared if self.mesh[axis].size > 1)

    def accumulated_gradient(self, name: str) -> Tensor | None:
        """Return the gradient of this rank's part of a trained parameter, see ZeroStage.accumulated_gradient."""
        return self._stage.accumulated_gradient(self.parameters[name])

    def set_accumulated_gradient(self, name: str, value: Tensor) -> None:
        """Replace the gradient of this rank's part of a trained parameter, see ZeroStage.set_accumulated_gradient."""
        self._stage.set_accumulated_gradient(self.parameters[name], value)

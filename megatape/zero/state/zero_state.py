"""Float32 master weights and optimizer state under ZeRO and tensor parallelism, viewed as blocks of whole parameters.

Initialization and checkpoints use this view, which is the same at every stage and topology. A parameter is a matrix (a vector
has one column). Tensor parallelism gives a rank a shard of its rows or columns, or all of it. In that shard, ZeRO gives the
rank one contiguous run of elements (zero/stages/).
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
from megatape.nn.parameters import Shard, is_sharded, matrix_shape, shard_of, spec_of
from megatape.registry import OPTIMIZERS
from megatape.zero.stages.fragment import Fragment, local_shape
from megatape.zero.stages.stage import ZeroStage
from megatape.zero.state.flat_state import FlatState
from megatape.zero.state.interfaces import ReadBlock
from megatape.zero.state.kinds import EMA, WEIGHT
from megatape.zero.state.matrix_state import MatrixState
from megatape.zero.state.moving_average import MovingAverage
from megatape.zero.state.piece import Piece


class ZeroState:
    """Access to an initialized DeepSpeed engine's master weights and optimizer state.

    Missing optimizer state is created as zeros. A frozen parameter has neither optimizer state nor a master weight: its compute
    weight takes that place, and the data axis shards it at stage 3 only.

    Args:
        engine: DeepSpeed's engine.
        stage: The engine's ZeRO stage.
        optimizer: Optimizer given to DeepSpeed.
        topology: All ranks.
        mesh: Mesh over all ranks.
        config: Optimizer configuration.

    Attributes:
        optimizer, topology, mesh: See Args.
        device: This rank's device.
        parameters: Module parameters by name.
        names_by_kind: Kind of tensor (WEIGHT, EMA, or one of the optimizer) -> names of the parameters that have one.
        matrix_state: Optimizer state for whole matrices, if the optimizer updates any.
        average: Moving average, or None if the run has none.
        num_loads: Number of times that `load` has overwritten the state.
        group: Process group for `gather`, or None for the one that training uses.
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
        self.device = torch.device(engine.device)
        self.optimizer = optimizer
        self.topology = topology
        self.mesh = mesh
        self._stage = stage
        # Any: DeepSpeed attaches its bookkeeping to the parameters.
        self.parameters: dict[str, Any] = dict(engine.module.named_parameters())
        self._trained_names = [name for name, parameter in self.parameters.items() if parameter.requires_grad]

        matrix_names = self._names_of_whole_matrices()
        matrix_shapes = {name: self.shape(name) for name in matrix_names}
        self.matrix_state = MatrixState(matrix_shapes, OPTIMIZERS[config.kind], topology, self.device)
        self.names_by_kind = self._find_names_by_kind(config, matrix_names)
        self._flat_state = FlatState(optimizer, stage, config)
        self._flat_state.create_missing(self._flats_of(matrix_names))
        self.num_loads = 0
        self.average: MovingAverage | None = None
        if config.ema_decay:
            self.average = MovingAverage(config.ema_decay, stage, optimizer, self._trained_parameters())

    def _names_of_whole_matrices(self) -> list[str]:
        """Return the names of trained weights that the optimizer updates as whole matrices."""
        names: set[str] = set()
        for group in self.optimizer.param_groups:
            if group["whole"]:
                names.update(group["names"])
        return [name for name in self._trained_names if name in names]

    def _find_names_by_kind(self, config: OptimizerConfig, matrix_names: list[str]) -> dict[str, list[str]]:
        matrices = set(matrix_names)
        other_names = [name for name in self._trained_names if name not in matrices]
        names = {WEIGHT: list(self.parameters)}
        for kind in OPTIMIZERS[config.kind].state:
            names[kind] = other_names
        names |= self.matrix_state.names_by_kind()
        if config.ema_decay:
            names[EMA] = self._trained_names
        return names

    def _flats_of(self, names: list[str]) -> set[int]:
        """Return the `id` of each flat tensor with a part of these parameters."""
        flats = set()
        for name in names:
            fragment = self.fragment(name)
            if fragment is not None:
                flats.add(id(fragment.flat))
        return flats

    def _trained_parameters(self) -> list[Any]:
        return [self.parameters[name] for name in self._trained_names]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a parameter's shape before sharding."""
        return spec_of(self.parameters[name]).shape

    def gather(self, name: str, kind: str, destination: int) -> Tensor | None:
        """Gather a whole float32 tensor on rank `destination`. Returns None on other ranks. Collective."""
        return self.contribution(name, kind).gather(destination, self.device, self.group)

    def contribution(self, name: str, kind: str) -> Piece:
        """Return this rank's piece, without values if another rank contributes the same ones."""
        piece = self.piece(name, kind)
        if self.matrix_state.contains(name, kind):
            # Only the matrix owner holds its state.
            return piece
        if all(self.mesh[axis].rank == 0 for axis in self.shared_axes(name)):
            return piece
        return replace(piece, values=piece.values[:0])

    def load(self, read: ReadBlock, step: int) -> None:
        """Overwrite master weights, optimizer state and compute weights.

        Args:
            read: Reads the blocks that contain this rank's pieces.
            step: Optimizer step count.
        """
        for kind, names in self.names_by_kind.items():
            for name in names:
                piece = self.piece(name, kind)
                if piece.values.numel():
                    read_tensor = partial(read, kind, name, piece.shape)
                    piece.values.copy_(piece.extract(read_tensor))
        self.num_loads += 1
        self._flat_state.set_step(step)
        self._stage.copy_masters_to_weights(self._trained_parameters())

    def finish_update(self) -> None:
        """Add the updated weights to their average. Call it after every update that was applied.

        Raises:
            UserError: The optimizer has created state that checkpoints do not store.
        """
        self._flat_state.check_registered(self.names_by_kind)
        if self.average is not None:
            self.average.update()

    def piece(self, name: str, kind: str) -> Piece:
        """Return this rank's run of elements, with writable values."""
        if self.matrix_state.contains(name, kind):
            shape = self.matrix_state.stored_shape(name, kind)
            rows, columns = matrix_shape(shape)
            everything = Shard(slice(0, rows), slice(0, columns))
            return Piece(shape, everything, 0, self.matrix_state.values(name, kind))

        parameter = self.parameters[name]
        shard = shard_of(parameter, local_shape(parameter), self.mesh["tensor"])
        fragment = self.fragment(name)
        if fragment is None:
            return Piece(self.shape(name), shard, 0, torch.empty(0))
        if kind == WEIGHT:
            values = fragment.values()
        else:
            values = fragment.values(self.optimizer.state[fragment.flat][kind])
        return Piece(self.shape(name), shard, fragment.start, values)

    def compute_weight(self, name: str) -> Tensor:
        """Return this rank's part of the weight with which passes compute."""
        return self._stage.compute_weight(self.parameters[name])

    def gradient(self, name: str) -> Tensor:
        """Return this rank's run of elements in the gradient, flat. Only valid during the optimizer's step."""
        fragment = self.fragment(name)
        if fragment is None:
            return torch.empty(0)
        assert fragment.flat.grad is not None, f"no gradient of {name}"
        return fragment.values(fragment.flat.grad)

    def fragment(self, name: str) -> Fragment | None:
        """Return the location of this rank's part of a parameter, or None if the rank has no part."""
        return self._stage.fragment(self.parameters[name])

    def shared_axes(self, name: str) -> tuple[str, ...]:
        """Return the axes along which all ranks, more than one, hold the same piece of the parameter."""
        parameter = self.parameters[name]
        shared = []
        if self._stage.is_replicated(parameter):
            shared.append("replicate")
        if not is_sharded(parameter):
            shared.append("tensor")
        return tuple(axis for axis in shared if self.mesh[axis].size > 1)

    def accumulated_gradient(self, name: str) -> Tensor | None:
        """Return the gradient of this rank's part, see ZeroStage.accumulated_gradient."""
        return self._stage.accumulated_gradient(self.parameters[name])

    def set_accumulated_gradient(self, name: str, value: Tensor) -> None:
        """Replace the gradient of this rank's part, see ZeroStage.set_accumulated_gradient."""
        self._stage.set_accumulated_gradient(self.parameters[name], value)

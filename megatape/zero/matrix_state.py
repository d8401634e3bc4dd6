"""State that optimizers keep for whole matrices."""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from megatape.registry import OptimizerEntry
from megatape.runtime.topology import Topology


class MatrixState:
    """Tensors of any shape that an optimizer keeps for whole matrices, each on the rank that owns the matrix.

    Attributes:
        owners: the rank that keeps the state of each matrix and computes its updates.
        held: tensors of the matrices that this rank owns, by matrix and kind.

    Args:
        shapes: of the matrices, by name.
        entry: the optimizer.
        topology: all ranks.
        device: of the tensors.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], entry: OptimizerEntry, topology: Topology, device: torch.device
    ) -> None:
        self._shapes = {name: entry.state_shapes(shape, "matrix") for name, shape in shapes.items()}
        self.owners: dict[str, int] = {}
        load = [0] * topology.world_size  # elements that each rank updates
        for name in sorted(shapes, key=lambda name: (-prod(shapes[name]), name)):
            self.owners[name] = load.index(min(load))
            load[self.owners[name]] += prod(shapes[name])
        self.held = {
            name: {kind: torch.zeros(shape, device=device) for kind, shape in of_state.items()}
            for name, of_state in self._shapes.items()
            if self.owners[name] == topology.rank
        }

    def shape(self, name: str, kind: str) -> tuple[int, ...] | None:
        """The shape in which checkpoints hold a tensor, as a vector unless it is a matrix; None if it is no such state."""
        shape = self._shapes.get(name, {}).get(kind)
        return shape if shape is None or len(shape) in (1, 2) else (prod(shape),)

    def kinds(self) -> dict[str, list[str]]:
        """The matrices that have each kind of tensor."""
        found: dict[str, list[str]] = {}
        for name, shapes in self._shapes.items():
            for kind in shapes:
                found.setdefault(kind, []).append(name)
        return found

    def values(self, name: str, kind: str) -> Tensor:
        """This rank's tensor, flat and writable; empty if another rank owns the matrix."""
        return self.held[name][kind].view(-1) if name in self.held else torch.empty(0)

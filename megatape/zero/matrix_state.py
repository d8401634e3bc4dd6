"""State that optimizers keep for whole matrices."""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from megatape.distributed.topology import Topology
from megatape.registry import OptimizerEntry


class MatrixState:
    """Tensors of any shape that an optimizer keeps for whole matrices, each on the rank that owns the matrix.

    Attributes:
        owners: the rank that keeps the state of each matrix and computes its updates (assign_owners).
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
        self._shapes = {name: entry.matrix_shapes(shape) for name, shape in shapes.items()}
        self.owners = assign_owners(shapes, entry, topology.world_size)
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


def assign_owners(shapes: Mapping[str, tuple[int, ...]], entry: OptimizerEntry, world_size: int) -> dict[str, int]:
    """The rank that updates each matrix, by descending cost: the one that has least to do until then.

    The same on all ranks: it depends on shapes, names and the number of ranks alone.
    """
    costs = {name: entry.update_flops(shape) or prod(shape) for name, shape in shapes.items()}
    owners: dict[str, int] = {}
    loads = [0] * world_size
    for name in sorted(costs, key=lambda name: (-costs[name], name)):
        owners[name] = loads.index(min(loads))
        loads[owners[name]] += costs[name]
    return owners

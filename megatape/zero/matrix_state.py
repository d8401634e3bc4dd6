"""Optimizer state of whole matrices."""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from megatape.distributed.topology import Topology
from megatape.registry import OptimizerEntry


class MatrixState:
    """Tensors of any shape that an optimizer keeps for whole matrices, each on the rank that owns the matrix.

    Args:
        shapes: Shapes of the matrices, by name.
        entry: Registry entry of the optimizer.
        topology: All ranks.
        device: Device of the tensors.

    Attributes:
        owners: Rank that keeps the state of each matrix and computes its updates (assign_owners).
        held: Tensors of the matrices that this rank owns, by matrix and kind.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        entry: OptimizerEntry,
        topology: Topology,
        device: torch.device,
    ) -> None:
        self._shapes = {name: entry.matrix_shapes(shape) for name, shape in shapes.items()}
        self.owners = assign_owners(shapes, entry, topology.world_size)
        self.held: dict[str, dict[str, Tensor]] = {}
        for name, state_shapes in self._shapes.items():
            if self.owners[name] == topology.rank:
                self.held[name] = {kind: torch.zeros(shape, device=device) for kind, shape in state_shapes.items()}

    def shape(self, name: str, kind: str) -> tuple[int, ...] | None:
        """Return the shape of a state tensor in checkpoints, a vector unless it is a matrix; None for other tensors."""
        shape = self._shapes.get(name, {}).get(kind)
        if shape is None or len(shape) in (1, 2):
            return shape
        return (prod(shape),)

    def kinds(self) -> dict[str, list[str]]:
        """Return the names of the matrices that have each kind of tensor."""
        names: dict[str, list[str]] = {}
        for name, shapes in self._shapes.items():
            for kind in shapes:
                names.setdefault(kind, []).append(name)
        return names

    def values(self, name: str, kind: str) -> Tensor:
        """Return this rank's tensor, flat and writable; empty if another rank owns the matrix."""
        if name not in self.held:
            return torch.empty(0)
        return self.held[name][kind].view(-1)


def assign_owners(shapes: Mapping[str, tuple[int, ...]], entry: OptimizerEntry, world_size: int) -> dict[str, int]:
    """Assign each matrix to a rank, greedily: the most expensive matrix first, always to the least loaded rank.

    The result depends only on shapes, names and the number of ranks, so it is the same on all ranks.

    Args:
        shapes: Shapes of the matrices, by name.
        entry: Registry entry of the optimizer.
        world_size: Number of ranks.

    Returns:
        The owner of each matrix, by descending cost.
    """
    costs = {name: entry.update_flops(shape) or prod(shape) for name, shape in shapes.items()}
    owners: dict[str, int] = {}
    loads = [0] * world_size
    for name in sorted(costs, key=lambda name: (-costs[name], name)):
        owners[name] = loads.index(min(loads))
        loads[owners[name]] += costs[name]
    return owners

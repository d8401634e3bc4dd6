"""Optimizer state for whole matrices."""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from megatape.distributed.topology import Topology
from megatape.registry import OptimizerEntry

Shape = tuple[int, ...]


class MatrixState:
    """Optimizer state for whole matrices: tensors of any shape. One rank owns each matrix.

    Args:
        shapes: Matrix shapes by name.
        entry: Optimizer's registry entry.
        topology: All ranks.
        device: Device to allocate state tensors on.

    Attributes:
        owner_ranks: Rank owning each matrix, most expensive matrix first. It holds the state and computes the updates.
        owned_tensors: State tensors for the matrices that this rank owns, by matrix and kind.
    """

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        entry: OptimizerEntry,
        topology: Topology,
        device: torch.device,
    ) -> None:
        # State tensor shapes by matrix and kind.
        self._state_shapes = {name: entry.matrix_shapes(shape) for name, shape in shapes.items()}
        self.owner_ranks = assign_owners(shapes, entry, topology.world_size)
        self.owned_tensors: dict[str, dict[str, Tensor]] = {}
        for name, state_shapes in self._state_shapes.items():
            if self.owner_ranks[name] == topology.rank:
                self.owned_tensors[name] = _zeros(state_shapes, device)

    def contains(self, name: str, kind: str) -> bool:
        """Whether a tensor is the state of a whole matrix, on any rank."""
        return kind in self._state_shapes.get(name, {})

    def stored_shape(self, name: str, kind: str) -> Shape:
        """Return a state tensor's shape in checkpoints, which store any tensor but a matrix as a vector."""
        shape = self._state_shapes[name][kind]
        if len(shape) in (1, 2):
            return shape
        return (prod(shape),)

    def names_by_kind(self) -> dict[str, list[str]]:
        """Return matrix names by kind of state tensor."""
        names: dict[str, list[str]] = {}
        for name, shapes in self._state_shapes.items():
            for kind in shapes:
                names.setdefault(kind, []).append(name)
        return names

    def values(self, name: str, kind: str) -> Tensor:
        """Return a state tensor, flat and writable; empty if another rank owns the matrix."""
        if name not in self.owned_tensors:
            return torch.empty(0)
        return self.owned_tensors[name][kind].view(-1)


def _zeros(shapes: Mapping[str, Shape], device: torch.device) -> dict[str, Tensor]:
    return {kind: torch.zeros(shape, device=device) for kind, shape in shapes.items()}


def assign_owners(shapes: Mapping[str, Shape], entry: OptimizerEntry, world_size: int) -> dict[str, int]:
    """Assign each matrix to a rank, greedily: the most expensive matrix first, always to the least loaded rank.

    The result only depends on shapes, names and the number of ranks, so it is the same on all ranks.

    Args:
        shapes: Matrix shapes by name.
        entry: Optimizer's registry entry.
        world_size: Number of ranks.

    Returns:
        Matrix name -> rank owning it, by descending cost.
    """
    costs = {name: entry.update_flops(shape) or prod(shape) for name, shape in shapes.items()}
    by_descending_cost = sorted(costs, key=lambda name: (-costs[name], name))
    owners: dict[str, int] = {}
    loads = [0] * world_size
    for name in by_descending_cost:
        least_loaded = loads.index(min(loads))
        owners[name] = least_loaded
        loads[least_loaded] += costs[name]
    return owners

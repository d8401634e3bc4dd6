"""Pieces of whole matrices on all ranks, as seen by the rank owning a matrix."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from megatape.distributed.values.exchange import gather_values
from megatape.nn.parameters import Shard, matrix_shape
from megatape.zero.state.kinds import WEIGHT
from megatape.zero.state.piece import Piece
from megatape.zero.state.zero_state import ZeroState

# Axes over which weights are sharded or replicated.
AXES = ("replicate", "tensor")


class PieceBounds(NamedTuple):
    """Bounds of a rank's piece in a matrix, as ranks exchange them.

    Attributes:
        rows: Begin and end of the rank's shard in the matrix rows.
        columns: Begin and end of the shard in the matrix columns.
        start: Index of the piece's first element in the shard.
        size: Number of elements in the piece.
    """

    rows: tuple[int, int]
    columns: tuple[int, int]
    start: int
    size: int

    @classmethod
    def of(cls, piece: Piece) -> Self:
        rows = piece.shard.rows
        columns = piece.shard.columns
        return cls((rows.start, rows.stop), (columns.start, columns.stop), piece.start, piece.values.numel())

    def to_piece(self, shape: tuple[int, ...]) -> Piece:
        """Return the piece in a matrix of this shape, with values on the meta device."""
        shard = Shard(slice(*self.rows), slice(*self.columns))
        values = torch.empty(self.size, device="meta")
        return Piece(shape, shard, self.start, values)


class MatrixPieces:
    """Pieces held by the ranks. A rank knows all pieces of the matrices that it owns. Making this object is collective.

    Args:
        state: Engine state.
    """

    def __init__(self, state: ZeroState) -> None:
        self._state = state
        self._owner_ranks = state.matrix_state.owner_ranks
        local_coordinates = {axis: state.mesh[axis].rank for axis in AXES}
        gathered = gather_values((local_coordinates, _local_bounds(state)), state.topology)
        # Coordinates of every rank in the mesh.
        self._coordinates = [coordinates for coordinates, _ in gathered]
        # Pieces of the owned matrices, by matrix and rank.
        self._pieces = _owned_pieces(state, [bounds for _, bounds in gathered])

    def sends_gradient(self, rank: int, name: str) -> bool:
        """Whether a rank sends its part of a matrix's gradient to the owner.

        If several ranks hold the same part, only the nearest one sends it.
        """
        sender = self._coordinates[rank]
        owner = self._coordinates[self._owner_ranks[name]]
        return all(sender[axis] == owner[axis] for axis in self._state.shared_axes(name))

    def gradient_sizes(self, name: str) -> dict[int, int]:
        """Return the size of each sending rank's part in the gradient of an owned matrix."""
        sizes = {}
        for rank, piece in enumerate(self._pieces[name]):
            if self.sends_gradient(rank, name):
                sizes[rank] = piece.values.numel()
        return sizes

    def join(self, name: str, parts: Iterable[Tensor], device: torch.device) -> Tensor:
        """Return an owned matrix [rows, columns] from the parts of all ranks.

        Args:
            name: Matrix name.
            parts: Each rank's flat tensor, empty if another rank sends the same elements.
            device: Device to join the parts on.
        """
        full = torch.zeros(matrix_shape(self._state.shape(name)), device=device)
        for piece, part in zip(self._pieces[name], parts, strict=True):
            replace(piece, values=part).add_to(full)
        return full

    def split(self, name: str, full: Tensor) -> dict[int, Tensor]:
        """Return each rank's elements of an owned matrix [rows, columns], flat."""

        def read(rows: slice, columns: slice) -> Tensor:
            return full[rows, columns]

        return {rank: piece.extract(read) for rank, piece in enumerate(self._pieces[name])}


def _local_bounds(state: ZeroState) -> dict[str, Any]:
    """Return the bounds of this rank's piece in each matrix, as plain tuples, which ranks can exchange."""
    return {name: tuple(PieceBounds.of(state.piece(name, WEIGHT))) for name in state.matrix_state.owner_ranks}


def _owned_pieces(state: ZeroState, bounds_by_rank: list[dict[str, Any]]) -> dict[str, list[Piece]]:
    """Return all ranks' pieces of the matrices that this rank owns, by matrix and rank."""
    pieces = {}
    for name, owner in state.matrix_state.owner_ranks.items():
        if owner == state.topology.rank:
            shape = state.shape(name)
            pieces[name] = [PieceBounds(*bounds[name]).to_piece(shape) for bounds in bounds_by_rank]
    return pieces

"""Whole matrices for optimizers that need them, gathered from the ranks among which ZeRO and tensor parallelism divide them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.distributed.exchange import gather_values
from megatape.nn.parameters import Share, matrix
from megatape.optim.matrices import ComputeUpdate
from megatape.zero.kinds import WEIGHT
from megatape.zero.piece import Piece
from megatape.zero.state import ZeroState


class WholeMatrices:
    """The whole matrices of a run, over the pieces of `ZeroState`.

    A step sends each element of a gradient to the owner of its matrix, and each element of an update to the ranks that hold the
    weight: two exchanges a round, of all ranks with all. Collective.

    Args:
        state: State of the engine.
    """

    def __init__(self, state: ZeroState) -> None:
        self._state = state
        self._device = state.engine.device
        self._owners = state.matrix_state.owners
        self._rank = state.topology.rank
        coordinates = {axis: state.mesh[axis].rank for axis in ("replicate", "tensor")}
        pieces = {name: _describe(state.piece(name, WEIGHT)) for name in self._owners}
        ranks = gather_values((coordinates, pieces), state.topology)
        # Coordinates in the mesh of every rank.
        self._coordinates = [coordinates for coordinates, _ in ranks]
        # All ranks' pieces of the matrices that this rank owns, with the size of their values, but no values.
        self._pieces: dict[str, list[Piece]] = {}
        for name, owner in self._owners.items():
            if owner == self._rank:
                shape = state.shape(name)
                self._pieces[name] = [_without_values(shape, *described[name]) for _, described in ranks]

    def update(self, group: dict[str, Any], compute: ComputeUpdate) -> None:
        """Update the matrices of a group, see megatape.optim.matrices.UpdateMatrices."""
        rate = group["lr"]
        decay = rate * group["weight_decay"]
        for names in self._rounds(group):
            own = names.get(self._rank)
            gradient = self._gather(names, own)
            parts: dict[int, Tensor] = {}
            if own is not None:
                update = compute(gradient, self._state.matrix_state.held[own], group)
                parts = self._cut(own, update)
            weights = {owner: self._state.piece(name, WEIGHT).values for owner, name in names.items()}
            sizes = {owner: weight.numel() for owner, weight in weights.items()}
            received = self._exchange(parts, sizes)
            for owner, weight in weights.items():
                weight.mul_(1 - decay)
                weight.sub_(received[owner].to(weight.device), alpha=rate)

    def _rounds(self, group: dict[str, Any]) -> Iterator[dict[int, str]]:
        """Yield a matrix of the group for each owner, so that all compute at the same time. The same on all ranks.

        At stage 3, DeepSpeed updates a group in parts. Matrices whose flat tensor is in another part are skipped.
        """
        flats = {id(flat) for flat in group["params"]}
        names = set(group["names"])
        queues: dict[int, list[str]] = {}
        # Owners are in the order of cost, so matrices of a round cost about the same.
        for name, owner in self._owners.items():
            if name not in names:
                continue
            fragment = self._state.fragment(name)
            if fragment is None or id(fragment.flat) in flats:
                queues.setdefault(owner, []).append(name)
        for row in zip_longest(*queues.values()):
            matrices = {}
            for owner, queued in zip(queues, row, strict=True):
                if queued is not None:
                    matrices[owner] = queued
            yield matrices

    def _gather(self, names: dict[int, str], own: str | None) -> Tensor:
        """Gather the gradients of a round's matrices on their owners. Collective.

        Args:
            names: Matrix of each owner.
            own: Matrix of this rank, None if it has none in this round.

        Returns:
            The gradient [rows, columns] of this rank's matrix, an empty tensor without one.
        """
        sent = {owner: self._state.gradient(name) for owner, name in names.items() if self._sends(self._rank, name)}
        if own is None:
            self._exchange(sent, {})
            return torch.zeros(0, device=self._device)
        sizes = {}
        for rank, piece in enumerate(self._pieces[own]):
            if self._sends(rank, own):
                sizes[rank] = piece.values.numel()
        received = self._exchange(sent, sizes)
        whole = torch.zeros(matrix(self._state.shape(own)), device=self._device)
        for piece, values in zip(self._pieces[own], received, strict=True):
            replace(piece, values=values).add_to(whole)
        return whole

    def _cut(self, name: str, update: Tensor) -> dict[int, Tensor]:
        """Return the part of a matrix's update for each rank."""

        def read(rows: slice, columns: slice) -> Tensor:
            return update[rows, columns]

        return {rank: piece.cut(read) for rank, piece in enumerate(self._pieces[name])}

    def _sends(self, rank: int, name: str) -> bool:
        """Whether the rank sends its part of a gradient to the owner.

        If several ranks hold the same part, only the nearest one sends it.
        """
        coordinates = self._coordinates[rank]
        nearest = self._coordinates[self._owners[name]]
        return all(coordinates[axis] == nearest[axis] for axis in self._state.shared_axes(name))

    def _exchange(self, parts: dict[int, Tensor], sizes: dict[int, int]) -> Sequence[Tensor]:
        """Exchange tensors between all ranks. Collective.

        Args:
            parts: This rank's tensors, by the rank to send them to.
            sizes: Number of elements to receive from each rank, 0 if it is not listed.

        Returns:
            The flat float32 tensors from all ranks, by rank.
        """
        input_parts = []
        output_sizes = []
        for rank in range(len(self._coordinates)):
            part = parts.get(rank)
            if part is None:
                part = torch.empty(0)
            input_parts.append(part.to(self._device))
            output_sizes.append(sizes.get(rank, 0))
        input_sizes = [part.numel() for part in input_parts]
        received = torch.empty(sum(output_sizes), device=self._device)
        dist.all_to_all_single(received, torch.cat(input_parts), output_sizes, input_sizes)
        return received.split(output_sizes)  # type: ignore[no-any-return, no-untyped-call]


def _describe(piece: Piece) -> tuple[tuple[int, int], tuple[int, int], int, int]:
    """Return the bounds of the rows and columns of a piece's share, its start there and its number of elements."""
    rows = piece.share.rows
    columns = piece.share.columns
    return (rows.start, rows.stop), (columns.start, columns.stop), piece.start, piece.values.numel()


def _without_values(
    shape: tuple[int, ...],
    rows: tuple[int, int],
    columns: tuple[int, int],
    start: int,
    size: int,
) -> Piece:
    """Return the piece that `_describe` describes, with values on the meta device.

    Args:
        shape: Shape of the whole matrix.
        rows: Bounds of the share's rows in the matrix, the last one exclusive.
        columns: Bounds of its columns.
        start: Index of the first element in the share.
        size: Number of elements.
    """
    share = Share(slice(*rows), slice(*columns))
    return Piece(shape, share, start, torch.empty(size, device="meta"))

"""Whole matrices for optimizers that need them, gathered from the ranks among which ZeRO and tensor parallelism divide them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.distributed.exchange import exchange
from megatape.nn.parameters import Share, matrix
from megatape.optim.matrices import ComputeUpdate
from megatape.zero.state import WEIGHT, Piece, ZeroState


class WholeMatrices:
    """The whole matrices of a run, over the pieces of `ZeroState`.

    A step sends each element of a gradient to the owner of its matrix, and each element of an update to the ranks that hold the
    weight: two exchanges a round, of all ranks with all. Collective.
    """

    def __init__(self, state: ZeroState) -> None:
        self._state = state
        self._owners = state.matrix_state.owners
        self._rank = state.topology.rank
        place = {axis: state.mesh[axis].rank for axis in ("replicate", "tensor")}
        local = {name: _describe(state.piece(name, WEIGHT)) for name in self._owners}
        ranks = exchange([place, local], state.topology)
        self._places = [place for place, _ in ranks]
        # All ranks' pieces of the matrices that this one owns, with the size of their values, but no values.
        self._pieces: dict[str, list[Piece]] = {}
        for name, owner in self._owners.items():
            if owner == self._rank:
                shape = state.shape(name)
                self._pieces[name] = [_without_values(shape, *described[name]) for _, described in ranks]

    def update(self, group: dict[str, Any], compute: ComputeUpdate) -> None:
        """See megatape.optim.matrices.UpdateMatrices."""
        rate = group["lr"]
        decay = group["lr"] * group["weight_decay"]
        for names in self._rounds(group):
            own = names.get(self._rank)
            gradient = self._gather(names, own)
            parts = self._cut(own, compute(gradient, self._state.matrix_state.held[own], group)) if own else {}
            held = {owner: self._state.piece(name, WEIGHT).values for owner, name in names.items()}
            received = self._exchange(parts, {owner: values.numel() for owner, values in held.items()})
            for owner, values in held.items():
                values.mul_(1 - decay).sub_(received[owner].to(values.device), alpha=rate)

    def _rounds(self, group: dict[str, Any]) -> Iterator[dict[int, str]]:
        """A matrix of the group for each owner, so that all compute at the same time; the same on all ranks.

        DeepSpeed updates a group in parts at stage 3: those matrices whose flat tensor is in it now.
        """
        flats = {id(flat) for flat in group["params"]}
        names = set(group["names"])
        queues: dict[int, list[str]] = {}
        for name, owner in self._owners.items():  # in the order of their cost, so that those of a round cost about the same
            if name in names and ((held := self._state.fragment(name)) is None or id(held.flat) in flats):
                queues.setdefault(owner, []).append(name)
        for row in zip_longest(*queues.values()):
            yield {owner: name for owner, name in zip(queues, row, strict=True) if name is not None}

    def _gather(self, names: dict[int, str], own: str | None) -> Tensor:
        """The gradient [rows, columns] of this rank's matrix of a round, an empty one without a matrix."""
        state = self._state
        pieces = self._pieces[own] if own else []
        sent = {owner: state.gradient(name) for owner, name in names.items() if self._sends(self._rank, name)}
        sizes = {rank: piece.values.numel() for rank, piece in enumerate(pieces) if own and self._sends(rank, own)}
        received = self._exchange(sent, sizes)
        whole = torch.zeros(matrix(state.shape(own)) if own else 0, device=state.engine.device)
        for piece, values in zip(pieces, received, strict=False):
            replace(piece, values=values).add_to(whole)
        return whole

    def _cut(self, name: str, update: Tensor) -> dict[int, Tensor]:
        """The parts of an update, by the rank that they are for."""
        return {rank: piece.cut(lambda rows, columns: update[rows, columns]) for rank, piece in enumerate(self._pieces[name])}

    def _sends(self, rank: int, name: str) -> bool:
        """Whether the rank sends its part of a gradient to the owner: of several with the same, the nearest does."""
        place = self._places[rank]
        nearest = self._places[self._owners[name]]
        return all(place[axis] == nearest[axis] for axis in self._state.shared_axes(name))

    def _exchange(self, parts: dict[int, Tensor], sizes: dict[int, int]) -> Sequence[Tensor]:
        """The flat float32 tensors that all ranks have for this one, by rank.

        Args:
            parts: this rank's, by the rank that they are for.
            sizes: numbers of elements of those that it receives, by rank.
        """
        device = self._state.engine.device
        ranks = range(len(self._places))
        given = [sizes.get(rank, 0) for rank in ranks]
        sent = [parts[rank].to(device) if rank in parts else torch.empty(0, device=device) for rank in ranks]
        received = torch.empty(sum(given), device=device)
        dist.all_to_all_single(received, torch.cat(sent), given, [part.numel() for part in sent])
        return received.split(given)  # type: ignore[no-any-return, no-untyped-call]


def _describe(piece: Piece) -> tuple[tuple[int, int], tuple[int, int], int, int]:
    """Return the bounds of the rows and columns of a piece's share, its start there and its number of elements."""
    rows = piece.share.rows
    columns = piece.share.columns
    return (rows.start, rows.stop), (columns.start, columns.stop), piece.start, piece.values.numel()


def _without_values(shape: tuple[int, ...], rows: tuple[int, int], columns: tuple[int, int], start: int, size: int) -> Piece:
    """Return the piece that `_describe` describes, with values on the meta device.

    Args:
        shape: Shape of the whole matrix.
        rows: Bounds of the share's rows in the matrix, the last one exclusive.
        columns: Bounds of its columns.
        start: Index of the first element in the share.
        size: Number of elements.
    """
    return Piece(shape, Share(slice(*rows), slice(*columns)), start, torch.empty(size, device="meta"))

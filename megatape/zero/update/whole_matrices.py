"""Updates whole matrices for optimizers that need them, although ZeRO and tensor parallelism shard them."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.optim.matrices import ComputeUpdate
from megatape.zero.state.kinds import WEIGHT
from megatape.zero.state.zero_state import ZeroState
from megatape.zero.update.matrix_pieces import MatrixPieces

# A round: owner rank -> name of its matrix, without owners that have none left.
Round = dict[int, str]


class WholeMatrices:
    """Whole-matrix updates of a run. Making this object is collective, and so are its methods.

    Matrices are updated in rounds, one matrix per owner. A round has two all-to-all exchanges: ranks send gradients to the
    matrix owners, and owners send updates to the ranks holding the weights.

    Args:
        state: Engine state.
    """

    def __init__(self, state: ZeroState) -> None:
        self._state = state
        self._device = state.device
        self._owner_ranks = state.matrix_state.owner_ranks
        self._rank = state.topology.rank
        self._world_size = state.topology.world_size
        self._pieces = MatrixPieces(state)

    def update(self, group: dict[str, Any], compute: ComputeUpdate) -> None:
        """Update the matrices of a group, see megatape.optim.matrices.UpdateMatrices."""
        for names in self._rounds(group):
            self._update_round(names, group, compute)

    def _rounds(self, group: dict[str, Any]) -> Iterator[Round]:
        """Yield a group's rounds, the same on all ranks.

        At stage 3, DeepSpeed updates a group in parts. Matrices with a flat tensor in another part are skipped.
        """
        flats = {id(flat) for flat in group["params"]}
        names = set(group["names"])
        queues: dict[int, list[str]] = {}
        # Owners are sorted by matrix cost, so matrices of a round cost about the same.
        for name, owner in self._owner_ranks.items():
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

    def _update_round(self, names: Round, group: dict[str, Any], compute: ComputeUpdate) -> None:
        gradient = self._gather_gradients(names)
        updates: dict[int, Tensor] = {}
        owned_name = names.get(self._rank)
        if owned_name is not None:
            matrix_state = self._state.matrix_state.owned_tensors[owned_name]
            update = compute(gradient, matrix_state, group)
            updates = self._pieces.split(owned_name, update)

        weights = {owner: self._state.piece(name, WEIGHT).values for owner, name in names.items()}
        sizes = {owner: weight.numel() for owner, weight in weights.items()}
        received = self._exchange(updates, sizes)
        rate = group["lr"]
        decay = rate * group["weight_decay"]
        for owner, weight in weights.items():
            weight.mul_(1 - decay)
            weight.sub_(received[owner].to(weight.device), alpha=rate)

    def _gather_gradients(self, names: Round) -> Tensor:
        """Gather a round's gradients on the matrix owners.

        Returns:
            Gradient [rows, columns] for the matrix that this rank owns, an empty tensor without one.
        """
        sent = {}
        for owner, name in names.items():
            if self._pieces.sends_gradient(self._rank, name):
                sent[owner] = self._state.gradient(name)
        owned_name = names.get(self._rank)
        if owned_name is None:
            self._exchange(sent, {})
            return torch.zeros(0, device=self._device)
        received = self._exchange(sent, self._pieces.gradient_sizes(owned_name))
        return self._pieces.join(owned_name, received, self._device)

    def _exchange(self, parts: dict[int, Tensor], sizes: dict[int, int]) -> Sequence[Tensor]:
        """Exchange tensors between all ranks.

        Args:
            parts: This rank's tensors, by the rank to send them to.
            sizes: Elements to receive from each rank, 0 if it is not listed.

        Returns:
            Flat float32 tensors received from all ranks, by rank.
        """
        input_parts = []
        output_sizes = []
        for rank in range(self._world_size):
            part = parts.get(rank)
            if part is None:
                part = torch.empty(0)
            input_parts.append(part.to(self._device))
            output_sizes.append(sizes.get(rank, 0))
        input_sizes = [part.numel() for part in input_parts]
        received = torch.empty(sum(output_sizes), device=self._device)
        dist.all_to_all_single(received, torch.cat(input_parts), output_sizes, input_sizes)
        return received.split(output_sizes)  # type: ignore[no-any-return, no-untyped-call]

"""Whole matrices for optimizers that need them, gathered from the ranks among which ZeRO and tensor parallelism divide them."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.parallel.parameters import matrix
from megatape.zero.state import WEIGHT, ZeroState


class WholeMatrices:
    """Implements megatape.optim.matrices.Matrices over the pieces of `ZeroState`.

    A step sends each matrix twice: its gradient to the owner, and the update to all ranks.
    """

    def __init__(self, state: ZeroState) -> None:
        self._state = state

    def names(self, group: dict[str, Any]) -> list[str]:
        """See Matrices. DeepSpeed updates a group in parts at stage 3: those whose flat tensor is in it now."""
        held = {name: self._state.fragment(name) for name in group["names"]}
        flats = {id(flat) for flat in group["params"]}
        return [name for name, fragment in held.items() if fragment is None or id(fragment.flat) in flats]

    def gradient(self, name: str) -> Tensor | None:
        """See Matrices."""
        return self._state.gradient_piece(name).gather(self._owner(name), self._state.engine.device, None)

    def state(self, name: str) -> dict[str, Tensor]:
        """See Matrices."""
        return self._state.matrix_state.held[name]

    def apply(self, name: str, update: Tensor | None, rate: float, decay: float) -> None:
        """See Matrices."""
        piece = self._state.piece(name, WEIGHT)
        whole = torch.empty(matrix(piece.shape), device=self._state.engine.device) if update is None else update.contiguous()
        dist.broadcast(whole, self._owner(name))
        if piece.values.numel():
            change = piece.cut(lambda rows, columns: whole[rows, columns]).to(piece.values.device)
            piece.values.mul_(1 - decay).sub_(change, alpha=rate)

    def _owner(self, name: str) -> int:
        return self._state.matrix_state.owners[name]

"""TAPE whose updates act on R instead of L: the paper's row "tensorial no".

The authors' `adavector`. The updates mix planes, so the two rows of each rotation get angles of their own and the state is
2R wide: (R cosines | R sines). (The paper calls this variant rotation-equivariant. It is not: in the authors' code an offset of 3
moves its logits by 18%.)
"""

import torch
from torch import Tensor, nn

from megatape.config import ModelConfig
from megatape.model.encodings import rotary
from megatape.model.encodings.encoding import StateUpdate
from megatape.model.encodings.tape import Tape, TapeUpdate
from megatape.parallel.collectives import TensorRanks, replicated


class VectorUpdate(TapeUpdate):
    """gain [R], W_up [I, R], W_down [R, I], the same for cosines and sines and for all channels.

    With grouped queries a channel moves by the sum over the heads of its group."""

    def _make_gain(self) -> None:
        self.gain = nn.Parameter(torch.empty(self.config.head_dim))  # all ranks need it, each for its heads

    def _make_mixing(self) -> None:
        inner, size = self.inner, self.config.head_dim
        self.up = nn.Parameter(torch.empty(inner, size))
        self.down = nn.Parameter(torch.empty(size, inner))
        self.multiply_adds += 2 * self.num_channels * (self.up.numel() + self.down.numel())

    def _gained(self, moved: Tensor) -> Tensor:
        gain = replicated(self.gain, self.ranks).to(rotary.STATE_DTYPE).repeat(2)  # [2R]
        return gain * moved.to(rotary.STATE_DTYPE).unflatten(2, (self.num_channels // self.ranks.size, -1)).sum(3)

    def _mixed(self, e: Tensor, active: Tensor, up: Tensor, down: Tensor) -> Tensor:
        up, down = up.to(e.dtype), down.to(e.dtype)
        parts = e.unflatten(-1, (2, -1))  # [B, N/T, L, 2, R]
        return (active.to(e.dtype)[:, :, None, None] * (parts @ up.T) @ down.T).flatten(3)


class TapeVector(Tape):
    """See above."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.state_width = 2 * config.head_dim
        self.gain_copies = config.head_dim

    def state(self, positions: Tensor, ranks: TensorRanks) -> Tensor:
        return rotary.twice(super().state(positions, ranks))

    def update(self, ranks: TensorRanks) -> StateUpdate:
        return VectorUpdate(self.config, ranks)

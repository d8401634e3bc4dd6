"""TAPE with a part changed, as in the paper's study. Shapes as in tape.py."""

from typing import ClassVar

import torch
from torch import Tensor

from megatape.config import ModelConfig
from megatape.encodings.rope import STATE_DTYPE
from megatape.encodings.tape import Tape, TapeUpdate
from megatape.nn.parameters import parameter


class SeparateUpdate(TapeUpdate):
    """Both updates of TAPE with two gains per head, [H, 2], and two W_up and W_down each.

    The two are stacked along the rows, cosines first.
    """

    def _make_gain(self) -> None:
        shape = (self.config.num_heads, 2)
        scale = self.num_channels
        self.gain = parameter(shape, self.tensor_axis, 0, init=0.0, decay=False, lr_scale=scale, role="vector")

    def _make_mixing(self) -> None:
        inner = self.inner
        channels = self.num_channels
        self.up = parameter((2 * inner, channels), self.tensor_axis, init=0.0, role="position")
        self.down = parameter((2 * channels, inner), self.tensor_axis, role="position")
        self.multiply_adds += 2 * inner * channels**2 + channels**2 * self.config.head_dim

    def _gains(self) -> Tensor:
        return self.gain.repeat_interleave(self.config.head_dim // 2, 1)

    def _mixed(self, e: Tensor, active: Tensor) -> Tensor:
        # [2, I, L], [2, L, I]
        up = self.up.unflatten(0, (2, -1))
        down = self.down.unflatten(0, (2, -1))
        outer = (down.permute(2, 0, 1)[..., None] * up.transpose(0, 1)[:, :, None]).flatten(1)  # [I, 2 * L * L]
        mixing = (active @ outer).unflatten(-1, (2, self.num_channels, self.num_channels))  # [B, N/T, 2, L, L]
        parts = e.unflatten(-1, (2, -1)).transpose(2, 3)  # [B, N/T, 2, L, R/2]
        return (mixing.to(e.dtype) @ parts).transpose(2, 3).flatten(3)


class TapeNoRotationEquivariance(Tape):
    """TAPE with separate weights for cosines and sines: the paper's row "rotation equivariance no, tensorial yes".

        e <- e + g * (A e)
        e <- e + W_down diag(silu(W_x m)) W_up * e,  with other weights for sines

    The authors' `adatensor`. The updates still act on L only, so each angle is stored once. But a plane is no longer multiplied
    by one number, so the logits depend on the offset of the positions.
    """

    update_class = SeparateUpdate


class WideTape(Tape):
    """TAPE whose updates mix planes, so the two rows of each rotation get their own angles.

    The state is 2R wide: (R cosines | R sines).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.state_width = 2 * config.head_dim

    def state(self, position_ids: Tensor) -> Tensor:
        cosines, sines = super().state(position_ids).chunk(2, dim=-1)
        return torch.cat([cosines, cosines, sines, sines], dim=-1)


class VectorUpdate(TapeUpdate):
    """gain [R], W_up [I, R], W_down [R, I], the same for cosines and sines and for all channels.

    With grouped queries, a channel moves by the sum over the heads of its group.

    copies: of the weights; 2 for those of cosines and those of sines.
    """

    copies: ClassVar[int] = 1

    def _make_gain(self) -> None:
        # Every rank needs all of it for its heads. The authors' matrix has R entries per row (see TapeUpdate).
        size = self.config.head_dim
        shape = (size,) if self.copies == 1 else (self.copies, size)
        self.gain = parameter(shape, self.tensor_axis, init=0.0, decay=False, lr_scale=size, role="vector")

    def _make_mixing(self) -> None:
        inner = self.inner
        size = self.config.head_dim
        self.up = parameter((self.copies * inner, size), self.tensor_axis, init=0.0, role="position")
        self.down = parameter((self.copies * size, inner), self.tensor_axis, role="position")
        self.multiply_adds += 2 // self.copies * self.num_channels * (self.up.numel() + self.down.numel())

    def _gained(self, attended_state: Tensor) -> Tensor:
        gain = self.gain.to(STATE_DTYPE).flatten().repeat(2 // self.copies)  # [2R]
        return gain * attended_state.to(STATE_DTYPE).unflatten(2, (self.num_channels // self.tensor_axis.size, -1)).sum(3)

    def _mixed(self, e: Tensor, active: Tensor) -> Tensor:
        # [copies, I, R], [copies, R, I]
        up, down = (weight.to(e.dtype).unflatten(0, (self.copies, -1)) for weight in (self.up, self.down))
        parts = e.unflatten(-1, (2, -1)).permute(3, 0, 1, 2, 4).flatten(1, 3)  # [2, B * N/T * L, R]
        inner = (parts @ up.mT).unflatten(1, e.shape[:3]) * active.to(e.dtype)[:, :, None]
        mixed = inner.flatten(1, 3) @ down.mT  # [2, B * N/T * L, R]
        return mixed.unflatten(1, e.shape[:3]).permute(1, 2, 3, 0, 4).flatten(3)


class TapeVector(WideTape):
    """Updates that act on R instead of L: the paper's row "rotation equivariance yes, tensorial no".

        e_l <- e_l + sum over heads of g * (A e_l)
        e_l <- e_l + W_down diag(silu(W_x m)) W_up e_l,  on the R planes of each channel

    It is the authors' `adavector`. (The paper calls this variant rotation-equivariant. It is not: in the authors' code an
    offset of 3 changes its logits by 18%.)
    """

    update_class = VectorUpdate


class SeparateVectorUpdate(VectorUpdate):
    """The same with separate weights for cosines and sines: gain [2, R], W_up [2I, R], W_down [2R, I], cosines first."""

    copies = 2


class TapeVectorNoRotationEquivariance(WideTape):
    """The paper's row "rotation equivariance no, tensorial no".

        as tape_vector, with other weights for sines

    The authors' code has no module for it; this is our reading: the changes of tape_vector and
    tape_no_rotation_equivariance together.
    """

    update_class = SeparateVectorUpdate


class FlatUpdate(TapeUpdate):
    """W_up [I, L R] and W_down [L R, I] act on all cosines of a token, and in the same way on its sines."""

    def _make_mixing(self) -> None:
        flat = self.num_channels * self.config.head_dim
        self.up = parameter((self.inner, flat), self.tensor_axis, init=0.0, role="position")
        self.down = parameter((flat, self.inner), self.tensor_axis, role="position")
        self.multiply_adds += 2 * (self.up.numel() + self.down.numel())

    def _mixed(self, e: Tensor, active: Tensor) -> Tensor:
        up = self.up.to(e.dtype)
        down = self.down.to(e.dtype)
        parts = e.unflatten(-1, (2, -1)).transpose(2, 3)  # [B, N/T, 2, L, R]
        mixed = active.to(e.dtype)[:, :, None] * (parts.flatten(3) @ up.T) @ down.T  # [B, N/T, 2, L * R]
        return mixed.unflatten(-1, (self.num_channels, -1)).transpose(2, 3).flatten(3)


class TapeNoEquivariance(WideTape):
    """A feed-forward update that mixes channels and planes at once: "w/o EQ" in the paper's shift study.

        e <- e + g * (A e)
        e <- e + W_down diag(silu(W_x m)) W_up e,  on all L R planes

    The authors' `adawoeq`. The gain is that of TAPE, one number per head.
    """

    update_class = FlatUpdate

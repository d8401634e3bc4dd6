"""Ablations of TAPE's updates in the paper (arXiv 2501.00712): TAPE without one of its equivariances, or without both.

TAPE mixes the L channels (it is "tensorial"), with weights that are equal for all planes and for cosines and sines ("rotation
equivariance"). The ablations change what is mixed:

    TapeNoRotationEquivariance              channels L, separate weights for cosines and sines
    TapeVector                              planes R, within each channel
    TapeVectorNoRotationEquivariance        planes R, separate weights for cosines and sines
    TapeNoEquivariance                      channels and planes, L R at once

Shapes as in tape.py.
"""

from typing import ClassVar

import torch
from torch import Tensor

from megatape.config import ModelConfig
from megatape.encodings.rope import STATE_DTYPE
from megatape.encodings.tape import Tape, TapeUpdate
from megatape.nn.parameters import parameter


class SeparateUpdate(TapeUpdate):
    """TAPE's updates with separate weights for cosines and sines. Those for cosines come first.

    Attributes:
        gain: g, [H, 2].
        up: W_up, [2 I, L], stacked along the rows.
        down: W_down, [2 L, I], stacked along the rows.
    """

    def _make_gain(self) -> None:
        shape = (self.config.num_heads, 2)
        scale = self.num_channels
        self.gain = parameter(
            shape,
            self.tensor_axis,
            0,
            init=0.0,
            decay=False,
            lr_scale=scale,
            role="vector",
        )

    def _make_mixing(self) -> None:
        inner = self.inner
        channels = self.num_channels
        self.up = parameter((2 * inner, channels), self.tensor_axis, init=0.0, role="position")
        self.down = parameter((2 * channels, inner), self.tensor_axis, role="position")
        build_matrices = 2 * inner * channels**2
        apply_matrices = channels**2 * self.config.head_dim
        self.multiply_adds += build_matrices + apply_matrices

    def _gains(self) -> Tensor:
        num_planes = self.config.head_dim // 2
        return self.gain.repeat_interleave(num_planes, 1)  # [H/T, R]

    def _mixed(self, e: Tensor, active: Tensor) -> Tensor:
        num_channels = self.num_channels
        up = self.up.unflatten(0, (2, -1))  # [2, I, L]
        down = self.down.unflatten(0, (2, -1))  # [2, L, I]
        left = down.permute(2, 0, 1)[..., None]  # [I, 2, L, 1]
        right = up.transpose(0, 1)[:, :, None]  # [I, 2, 1, L]
        outer = (left * right).flatten(1)  # [I, 2 * L * L]
        mixing = (active @ outer).unflatten(-1, (2, num_channels, num_channels))  # [B, N/T, 2, L, L]
        parts = e.unflatten(-1, (2, -1)).transpose(2, 3)  # [B, N/T, 2, L, R/2]
        mixed = mixing.to(e.dtype) @ parts  # [B, N/T, 2, L, R/2]
        return mixed.transpose(2, 3).flatten(3)


class TapeNoRotationEquivariance(Tape):
    """TAPE with separate weights for cosines and sines: "rotation equivariance no, tensorial yes" in the paper's table.

    The authors' `adatensor`. Logits depend on the position offset.
    """

    equation = """
        e <- e + g * (A e)
        e <- e + W_down diag(silu(W_x m)) W_up * e,  with other weights for sines
    """
    update_class = SeparateUpdate


class WideTape(Tape):
    """Base class of ablations that mix planes, so that the two rows of each rotation get different angles.

    The state is 2R wide: R cosines, then R sines.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.state_width = 2 * config.head_dim

    def state(self, position_ids: Tensor) -> Tensor:
        cosines, sines = super().state(position_ids).chunk(2, dim=-1)
        return torch.cat([cosines, cosines, sines, sines], dim=-1)


class VectorUpdate(TapeUpdate):
    """TAPE's updates along R instead of L, with the same weights for all channels.

    With grouped queries, a channel moves by the sum over its group's heads.

    Attributes:
        copies: Number of copies of the weights: 1, or 2 for separate ones of cosines and sines.
        gain: g, [R], or [2, R] with two copies.
        up: W_up, [copies * I, R].
        down: W_down, [copies * R, I].
    """

    copies: ClassVar[int] = 1

    def _make_gain(self) -> None:
        # Every rank needs the whole gain for its heads. The authors' matrix has R entries per row (see TapeUpdate).
        size = self.config.head_dim
        shape = (self.copies, size) if self.copies > 1 else (size,)
        self.gain = parameter(
            shape,
            self.tensor_axis,
            init=0.0,
            decay=False,
            lr_scale=size,
            role="vector",
        )

    def _make_mixing(self) -> None:
        inner = self.inner
        size = self.config.head_dim
        self.up = parameter((self.copies * inner, size), self.tensor_axis, init=0.0, role="position")
        self.down = parameter((self.copies * size, inner), self.tensor_axis, role="position")
        # The weights multiply cosines and sines of every channel.
        num_uses = 2 // self.copies * self.num_channels
        self.multiply_adds += num_uses * (self.up.numel() + self.down.numel())

    def _gained(self, attended_state: Tensor) -> Tensor:
        gain = self.gain.to(STATE_DTYPE).flatten().repeat(2 // self.copies)  # [2R]
        channels = self.num_channels // self.tensor_axis.size
        by_channel = attended_state.to(STATE_DTYPE).unflatten(2, (channels, -1))  # [B, N, L/T, H/L, 2R]
        return gain * by_channel.sum(3)

    def _mixed(self, e: Tensor, active: Tensor) -> Tensor:
        up = self.up.to(e.dtype).unflatten(0, (self.copies, -1))  # [copies, I, R]
        down = self.down.to(e.dtype).unflatten(0, (self.copies, -1))  # [copies, R, I]
        token_channels = e.shape[:3]  # B, N/T, L
        parts = e.unflatten(-1, (2, -1)).permute(3, 0, 1, 2, 4)  # [2, B, N/T, L, R]
        raised = (parts.flatten(1, 3) @ up.mT).unflatten(1, token_channels)  # [2, B, N/T, L, I]
        gated = raised * active.to(e.dtype)[:, :, None]  # [2, B, N/T, L, I]
        mixed = (gated.flatten(1, 3) @ down.mT).unflatten(1, token_channels)  # [2, B, N/T, L, R]
        return mixed.permute(1, 2, 3, 0, 4).flatten(3)


class TapeVector(WideTape):
    """TAPE with updates along R instead of L: "rotation equivariance yes, tensorial no" in the paper's table.

    The authors' `adavector`. The paper calls it rotation-equivariant, but in the authors' code an offset of 3 changes the
    logits by 18%.
    """

    equation = """
        e_l <- e_l + sum over heads of g * (A e_l)
        e_l <- e_l + W_down diag(silu(W_x m)) W_up e_l,  on the R planes of each channel
    """
    update_class = VectorUpdate


class SeparateVectorUpdate(VectorUpdate):
    """VectorUpdate with separate weights for cosines (first) and sines."""

    copies = 2


class TapeVectorNoRotationEquivariance(WideTape):
    """TAPE with both changes: "rotation equivariance no, tensorial no" in the paper's table.

    The authors' code lacks it. This is our reading: tape_vector and tape_no_rotation_equivariance combined.
    """

    equation = "as tape_vector, with other weights for sines"
    update_class = SeparateVectorUpdate


class FlatUpdate(TapeUpdate):
    """TAPE's attention update, and a feed-forward update that mixes channels and planes, with the same weights for sines.

    Attributes:
        up: W_up, [I, L R].
        down: W_down, [L R, I].
    """

    def _make_mixing(self) -> None:
        flat_size = self.num_channels * self.config.head_dim
        self.up = parameter((self.inner, flat_size), self.tensor_axis, init=0.0, role="position")
        self.down = parameter((flat_size, self.inner), self.tensor_axis, role="position")
        self.multiply_adds += 2 * (self.up.numel() + self.down.numel())

    def _mixed(self, e: Tensor, active: Tensor) -> Tensor:
        up = self.up.to(e.dtype)
        down = self.down.to(e.dtype)
        parts = e.unflatten(-1, (2, -1)).transpose(2, 3)  # [B, N/T, 2, L, R]
        raised = parts.flatten(3) @ up.T  # [B, N/T, 2, I]
        gated = active.to(e.dtype)[:, :, None] * raised  # [B, N/T, 2, I]
        mixed = gated @ down.T  # [B, N/T, 2, L * R]
        return mixed.unflatten(-1, (self.num_channels, -1)).transpose(2, 3).flatten(3)


class TapeNoEquivariance(WideTape):
    """TAPE with a feed-forward update mixing channels and planes at once: "w/o EQ" in the paper's shift study.

    The authors' `adawoeq`. Its gain is TAPE's.
    """

    equation = """
        e <- e + g * (A e)
        e <- e + W_down diag(silu(W_x m)) W_up e,  on all L R planes
    """
    update_class = FlatUpdate

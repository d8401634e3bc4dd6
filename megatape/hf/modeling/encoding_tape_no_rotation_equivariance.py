"""TAPE with weights of their own for the cosines and the sines. Shapes as in encoding_tape.py."""

from torch import Tensor

from .configuration_tape import TapeConfig
from .encoding import StateUpdate
from .encoding_tape import Tape, TapeUpdate


class SeparateUpdate(TapeUpdate):
    """gain [H, 2], and W_up, W_down twice, one upon the other: cosines first."""

    def shapes(self, config: TapeConfig) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        inner, channels = config.position_size, config.num_key_value_heads
        return (config.num_attention_heads, 2), (2 * inner, channels), (2 * channels, inner)

    def gained(self, attended_positions: Tensor, gain: Tensor) -> Tensor:
        parts = attended_positions.unflatten(-1, (2, -1)).transpose(3, 4)  # [B, N, L, 2, H/L, R/2]
        return (gain.view(self.channels, -1, 2).transpose(1, 2)[:, :, None] @ parts).flatten(3)

    def mixed(self, e: Tensor, active: Tensor) -> Tensor:
        up, down = self.up.unflatten(0, (2, -1)), self.down.unflatten(0, (2, -1))  # [2, I, L], [2, L, I]
        outer = (down.permute(2, 0, 1)[..., None] * up.transpose(0, 1)[:, :, None]).flatten(1)  # [I, 2 * L * L]
        mixing = (active @ outer).unflatten(-1, (2, self.channels, self.channels))
        return (mixing.to(e.dtype) @ e.unflatten(-1, (2, -1)).transpose(2, 3)).transpose(2, 3).flatten(3)


class TapeNoRotationEquivariance(Tape):
    """See above."""

    def update(self) -> StateUpdate:
        return SeparateUpdate(self.config)

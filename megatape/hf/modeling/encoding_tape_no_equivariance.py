"""TAPE whose feed-forward update mixes channels and planes at once.

The state is 2R wide, (R cosines | R sines): the two rows of each rotation have angles of their own. Shapes as in
encoding_tape.py.
"""

from torch import Tensor

from .configuration_tape import TapeConfig
from .encoding import StateUpdate
from .encoding_tape import Tape, TapeUpdate
from .rotary import all_channels, rotary_parts


class FlatUpdate(TapeUpdate):
    """W_up [I, L R] and W_down [L R, I] act on all of a token's cosines, and in the same way on its sines."""

    def shapes(self, config: TapeConfig) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        inner, flat = config.position_size, config.num_key_value_heads * config.head_dim
        return (config.num_attention_heads,), (inner, flat), (flat, inner)

    def mixed(self, e: Tensor, active: Tensor) -> Tensor:
        parts = e.unflatten(-1, (2, -1)).transpose(2, 3).flatten(3)  # [B, N, 2, L * R]
        mixed = (active.to(e.dtype)[:, :, None] * (parts @ self.up.to(e.dtype).T)) @ self.down.to(e.dtype).T
        return mixed.unflatten(-1, (self.channels, -1)).transpose(2, 3).flatten(3)


class TapeNoEquivariance(Tape):
    """See above."""

    def state(self, positions: Tensor) -> Tensor:
        cosines, sines = rotary_parts(self.config, positions)
        return all_channels(self.config, cosines, cosines, sines, sines)

    def update(self) -> StateUpdate:
        return FlatUpdate(self.config)

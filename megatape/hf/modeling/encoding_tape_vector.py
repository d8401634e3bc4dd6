"""TAPE whose updates act on R instead of L.

The state is 2R wide, (R cosines | R sines): the two rows of each rotation have angles of their own. Shapes as in
encoding_tape.py.
"""

from torch import Tensor

from .configuration_tape import TapeConfig
from .encoding import StateUpdate
from .encoding_tape import Tape, TapeUpdate
from .rotary import all_channels, rotary_parts


class VectorUpdate(TapeUpdate):
    """gain [R], W_up [I, R], W_down [R, I], the same for cosines and sines and for all channels."""

    def shapes(self, config: TapeConfig) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        inner, size = config.position_size, config.head_dim
        return (size,), (inner, size), (size, inner)

    def gained(self, attended_positions: Tensor, gain: Tensor) -> Tensor:
        return gain.repeat(2) * attended_positions.sum(3)

    def mixed(self, e: Tensor, active: Tensor) -> Tensor:
        inner = active.to(e.dtype)[:, :, None, None] * (e.unflatten(-1, (2, -1)) @ self.up.to(e.dtype).T)
        return (inner @ self.down.to(e.dtype).T).flatten(3)


class TapeVector(Tape):
    """See above."""

    def state(self, positions: Tensor) -> Tensor:
        cosines, sines = rotary_parts(self.config, positions)
        return all_channels(self.config, cosines, cosines, sines, sines)

    def update(self) -> StateUpdate:
        return VectorUpdate(self.config)


class SeparateVectorUpdate(VectorUpdate):
    """The same with weights of their own for cosines and sines: gain [2, R], W_up [2I, R], W_down [2R, I], cosines first."""

    def shapes(self, config: TapeConfig) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        inner, size = config.position_size, config.head_dim
        return (2, size), (2 * inner, size), (2 * size, inner)

    def gained(self, attended_positions: Tensor, gain: Tensor) -> Tensor:
        return gain.flatten() * attended_positions.sum(3)

    def mixed(self, e: Tensor, active: Tensor) -> Tensor:
        up, down = (weight.to(e.dtype).unflatten(0, (2, -1)) for weight in (self.up, self.down))  # [2, I, R], [2, R, I]
        inner = active.to(e.dtype)[:, :, None, None, None] * (e.unflatten(-1, (2, 1, -1)) @ up.mT)  # [B, N, L, 2, 1, I]
        return (inner @ down.mT).flatten(3)


class TapeVectorNoRotationEquivariance(TapeVector):
    """See above."""

    def update(self) -> StateUpdate:
        return SeparateVectorUpdate(self.config)

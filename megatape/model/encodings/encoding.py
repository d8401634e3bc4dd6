"""The interface of a position encoding. The transformer knows no encoding by name.

Shapes as in model/transformer.py.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from megatape.attention.backend import Attends
from megatape.attention.bias import DistanceBias, ScoreBias
from megatape.attention.rotation import PositionState
from megatape.config import ModelConfig
from megatape.data.training.positions import Positions
from megatape.parallel.mesh import Axis


class LayerBias(nn.Module):
    """The bias that one layer adds to the scores, with its parameters.

    multiply_adds: its cost for one pair of tokens and all heads.
    """

    multiply_adds: int = 0

    def forward(self, q: Tensor) -> tuple[Tensor, ...]:
        """The float32 weights from which the bias of this rank's heads is computed, for queries [B, N, H/T, R].

        They must be tensors: ZeRO-3 gathers a module's parameters for its backward pass when a
        gradient reaches its outputs.
        """
        raise NotImplementedError

    def scores(self, weights: tuple[Tensor, ...], state: Tensor | None) -> ScoreBias:
        """The bias in the form that attention takes. weights: from `forward`; state: from Encoding.state."""
        return DistanceBias(*weights)


class StateUpdate(nn.Module):
    """The update of the position state by one layer, with its parameters.

    Attributes:
        multiply_adds: Its cost for one token.
        by_kernel: Whether our own Triton kernels compute it, where it has_kernel.
    """

    multiply_adds: int
    by_kernel: bool = False

    def forward(self, positions: PositionState, attended_positions: Tensor | None, m: Tensor) -> PositionState:
        """The state after this layer, whose delta has the dtype of m.

        Args:
            positions: As in Streams (model/block.py).
            attended_positions: A e of this rank's query heads, [B, N, H/T, W], if attention moves the state.
            m: The output of the MLP, [B, N/T, C].
        """
        raise NotImplementedError

    def has_kernel(self, device: torch.device) -> bool:
        """Whether our own Triton kernels support this update."""
        return False


class Encoding:
    """A position encoding. This base class does nothing: the model sees positions only through its causal mask."""

    attends: ClassVar[Attends] = "plain"
    state_width: int = 0  # W, width of one channel of a state that blocks move
    has_position_tensor: ClassVar[bool] = False  # the state is cosines and sines that rotate queries and keys

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    @property
    def carries_state(self) -> bool:
        """Whether blocks move the state; between them each rank holds the part of its own tokens."""
        return self.state_width > 0

    def positions(self, random_offset: bool) -> Positions:
        """The positions that the tokens of a sample get. random_offset: whether training may shift them."""
        return Positions()

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """The embedded tokens [B, N/T, C] after adding what encodes their positions [B, N/T]."""
        return x

    def state(self, positions: Tensor) -> Tensor | None:
        """The state before any block, a constant of the positions [B, N].

        If blocks move it: float32 [B, N, 1, W], the same for all channels. Otherwise any floating-point number that `rotate_qk`
        or the bias reads.
        """
        return None

    def rotate_qk(self, q: Tensor, k: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """The queries [B, N, H/T, R] and keys [B, N, L/T, R] from which attention computes scores.

        Attention rotates them by a position tensor, so this is for other functions of the `state` of all tokens.
        """
        return q, k

    def bias(self, axis: Axis) -> LayerBias | None:
        """The bias of a new layer, for encodings that have one."""
        return None

    def update(self, axis: Axis) -> StateUpdate | None:
        """The update of the state by a new layer, for encodings that change it."""
        return None

"""The interface of a position encoding. The transformer knows no encoding by name.

Shapes as in model/transformer.py.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from megatape.attention.backend import Attends
from megatape.attention.bias import DistanceBias, ScoreBias
from megatape.config import ModelConfig
from megatape.data.positions import Positions
from megatape.parallel.mesh import Axis


class LayerBias(nn.Module):
    """The bias that one layer adds to the scores, with its parameters.

    multiply_adds: its cost for one pair of tokens and all heads."""

    multiply_adds: int = 0

    def forward(self, q: Tensor) -> tuple[Tensor, ...]:
        """The float32 weights from which the bias of this rank's heads is computed, for queries [B, N, H/T, R].

        They must be tensors: ZeRO-3 gathers a module's parameters for its backward pass when a
        gradient reaches its outputs."""
        raise NotImplementedError

    def scores(self, weights: tuple[Tensor, ...], state: Tensor | None) -> ScoreBias:
        """The bias in the form that attention takes. weights: from `forward`; state: from Encoding.state."""
        return DistanceBias(*weights)


class StateUpdate(nn.Module):
    """The update of the state by one layer, with its parameters. multiply_adds: its cost for one token. by_kernel: by our own
    Triton kernels, if it has_kernel.

    The state e is Encoding.state plus what layers have moved it by."""

    multiply_adds: int
    by_kernel: bool = False

    def forward(self, state: Tensor, moved: Tensor | None, attended_positions: Tensor | None, m: Tensor) -> Tensor:
        """Returns what this layer and those before it have moved e by, [B, N/T, L, W] in the dtype of m.

        state: of all tokens, [B, N, 1, W]; moved: [B, N/T, L, W], None for zero; attended_positions: A e of this rank's query
        heads, [B, N, H/T, W], if attention moves the state; m: [B, N/T, C], the output of the MLP."""
        raise NotImplementedError

    def has_kernel(self, device: torch.device) -> bool:
        """Whether our own Triton kernels support this update."""
        return False


class Encoding:
    """A position encoding. This base class does nothing: the model sees positions only through its causal mask."""

    attends: ClassVar[Attends] = "plain"
    carries_state: ClassVar[bool] = False  # blocks move the state; between them each rank holds the part of its own tokens
    state_width: int = 0  # W, width of one channel of a state that blocks move
    has_position_tensor: ClassVar[bool] = False  # the state is cosines and sines that rotate queries and keys

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    def positions(self, random_offset: bool) -> Positions:
        """The positions that the tokens of a sample get. random_offset: whether training may shift them."""
        return Positions()

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """The embedded tokens [B, N/T, C] after adding what encodes their positions [B, N/T]."""
        return x

    def state(self, positions: Tensor) -> Tensor | None:
        """The state before any block, a constant of the positions [B, N].

        If blocks move it: float32 [B, N, 1, W], the same for all channels. Otherwise any floating-point number that `rotate_qk`
        or the bias reads."""
        return None

    def rotate_qk(self, q: Tensor, k: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """The queries [B, N, H/T, R] and keys [B, N, L/T, R] from which scores are computed.

        state: that of all tokens, as `state` gives it."""
        return q, k

    def bias(self, axis: Axis) -> LayerBias | None:
        """The bias of a new layer, for encodings that have one."""
        return None

    def update(self, axis: Axis) -> StateUpdate | None:
        """The update of the state by a new layer, for encodings that change it."""
        return None

"""What a position encoding says about itself. The transformer asks these questions and knows no encoding by name.

Shapes as in model/transformer.py.
"""

from typing import ClassVar

from torch import Tensor, nn

from megatape.attention.backend import Attends
from megatape.attention.bias import DistanceBias, ScoreBias
from megatape.config import ModelConfig
from megatape.data.positions import Positions
from megatape.parallel.mesh import Axis


class LayerBias(nn.Module):
    """What one layer adds to the scores, with its parameters; `multiply_adds` is its cost for one pair of tokens and all heads."""

    multiply_adds: int = 0

    def forward(self, q: Tensor) -> tuple[Tensor, ...]:
        """What the bias of this rank's heads is computed from, float32, for queries [B, N, H/T, R].

        The output must be tensors: ZeRO-3 gathers a module's parameters for the backward pass when a gradient reaches those."""
        raise NotImplementedError

    def scores(self, weights: tuple[Tensor, ...], state: Tensor | None) -> ScoreBias:
        """The bias as attention takes it; weights: from `forward`, state: from Encoding.state."""
        return DistanceBias(*weights)


class StateUpdate(nn.Module):
    """How one layer moves the state, with its parameters; `multiply_adds` is its cost for one token."""

    multiply_adds: int

    def forward(self, e: Tensor, attended_positions: Tensor | None, m: Tensor) -> Tensor:
        """e: [B, N/T, L, W]; attended_positions: [B, N, H/T, W], A e of this rank's query heads, if attention moves the state; m:
        [B, N/T, C], output of the MLP. Returns the new e."""
        raise NotImplementedError


class Encoding:
    """A position encoding. Every answer of this base is "nothing": the model sees no positions but through its causal mask."""

    attends: ClassVar[Attends] = "plain"
    carries_state: ClassVar[bool] = False  # blocks change the state; between them each rank then holds its own tokens' part
    state_width: int = 0  # W, numbers of one channel of a state that blocks change
    has_position_tensor: ClassVar[bool] = False  # the state is cosines and sines that rotate queries and keys

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    def positions(self, random_offset: bool) -> Positions:
        """Which positions the tokens of a sample get; random_offset: whether training may shift them."""
        return Positions()

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """The embedded tokens [B, N/T, C] with what their positions [B, N/T] add to them."""
        return x

    def state(self, positions: Tensor) -> Tensor | None:
        """What runs beside x through the blocks. If blocks change it: e [B, N/T, L, W] in float32, from this rank's positions
        [B, N/T]. Otherwise any constant of floating type that `rotate_qk` or the bias reads, from all positions [B, N]."""
        return None

    def rotate_qk(self, q: Tensor, k: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Queries [B, N, H/T, R] and keys [B, N, L/T, R] as the scores need them; state: of all tokens, [B, N, L/T, W] if blocks
        change it."""
        return q, k

    def bias(self, axis: Axis) -> LayerBias | None:
        """A new layer's bias, for encodings that attend with one."""
        return None

    def update(self, axis: Axis) -> StateUpdate | None:
        """A new layer's update of the state, for encodings that carry one."""
        return None

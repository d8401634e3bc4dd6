"""What a position encoding answers to the model in modeling_tape.py.

B batch, N new tokens, K keys (new and cached), C hidden size, H query heads, L key/value heads, R head size, W numbers of one
channel of the state.
"""

from typing import ClassVar

from torch import Tensor, nn
from transformers import PreTrainedConfig


class LayerBias(nn.Module):
    """What one layer adds to the scores, with its parameters."""

    def forward(self, distance: Tensor, state: Tensor | None) -> Tensor:
        """distance: [N, K], of each key before each query; state: of the new tokens. Returns [B or 1, H, N, K]."""
        raise NotImplementedError

    def init_weights(self, std: float) -> None:
        """Give a new model's parameters their first values; std: of those that are drawn."""


class StateUpdate(nn.Module):
    """How one layer moves the state, with its parameters."""

    def forward(self, e: Tensor, attended_positions: Tensor | None, m: Tensor) -> Tensor:
        """Compute the new e.

        e: [B, N, L, W]; attended_positions: [B, N, H, W], A e of every query head, if attention moves the state; m: [B, N, C],
        output of the MLP.
        """
        raise NotImplementedError

    def init_weights(self, std: float) -> None:
        """As LayerBias.init_weights."""


class Encoding:
    """A position encoding of a model with this TapeConfig.

    Every answer of this base is "nothing": the model sees no positions but through its causal mask.
    """

    scalable: ClassVar[bool] = False  # whether rope_parameters may scale its frequencies
    attention_moves_state: ClassVar[bool] = False  # with the weights that move the values

    def __init__(self, config: PreTrainedConfig) -> None:
        self.config = config

    def positions(self, position_ids: Tensor, length: Tensor | None) -> Tensor:
        """The positions [B, N] of the tokens with these numbers. length: [B] or [1], as TapeModel.forward takes it."""
        return position_ids

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """The embedded tokens [B, N, C] with what their positions add to them."""
        return x

    def state(self, positions: Tensor) -> Tensor | None:
        """What runs beside x through the layers, from the positions [B, N].

        float32 whatever the precision of the weights: e [B, N, L, W] if layers change it, else any constant that `rotate_qk` or
        a bias reads.
        """
        return None

    def rotate_qk(self, q: Tensor, k: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Queries [B, N, H, R] and keys [B, N, L, R] as the scores want them."""
        return q, k

    def bias(self) -> LayerBias | None:
        """A new layer's bias."""
        return None

    def update(self) -> StateUpdate | None:
        """A new layer's update of the state."""
        return None

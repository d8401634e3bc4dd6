"""TAPE: a position tensor that every layer updates from the content (arXiv 2501.00712, section 3).

Shapes as in model/transformer.py; I is the inner size of the feed-forward update.

    e [B, N, L, R]   the position tensor; e[..., :R/2] are cosines and e[..., R/2:] sines of R/2 planes

Each angle is stored once. The authors' code stores it twice, in two tensors of full width. But every update
of TAPE is linear over L with coefficients that do not depend on the plane, so both copies stay identical.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.attention.rotation import PositionState
from megatape.config import ModelConfig
from megatape.distributed.layout import channels_to_tokens, local_tokens
from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import StateUpdate
from megatape.encodings.rope import STATE_DTYPE, Rope
from megatape.nn.parameters import parameter
from megatape.nn.remat import recompute


class TapeUpdate(StateUpdate):
    """The two updates of e in one layer.

    The equations are those of docs/model.md:

        e <- e + g * (A e)                            attention: the weights A of the values act on e too
        e <- e + W_down diag(silu(W_x m)) W_up * e    feed-forward: an L x L matrix for each token, from m = MLP(h)

    Both act on the channel dimension L with coefficients that do not depend on the plane, which keeps
    the model a function of relative positions. With grouped queries, all query heads of a group move
    its channel l, each with its own gain: e_l += sum over the heads h of the group of g_h (A_h e_l).

    The authors write the attention gain as an L x L matrix, but their contraction sums it over
    columns: it acts as one scalar per head, which is what is stored here.

    attention, feed_forward: which updates there are. The ablations override the parts.
    """

    def __init__(self, config: ModelConfig, tensor_axis: Axis, attention: bool = True, feed_forward: bool = True) -> None:
        super().__init__()
        self.config = config
        self.tensor_axis = tensor_axis
        self.attention = attention
        self.feed_forward = feed_forward
        self.num_channels = config.num_kv_heads
        self.inner = config.position_size
        self.multiply_adds = 0
        if attention:
            self._make_gain()
        if feed_forward:
            self.content = parameter((self.inner, config.hidden_size), tensor_axis, role="position")  # W_x
            self.multiply_adds += self.content.numel()
            self._make_mixing()

    def _make_gain(self) -> None:
        # g starts at zero, so positions start out rotary. The authors' matrix has L entries per row, each
        # of which Adam moves by the learning rate. Only their sum matters, so it learns L times as fast.
        self.gain = parameter((self.config.num_heads,), self.tensor_axis, 0, init=0.0, lr_scale=self.num_channels)

    def _make_mixing(self) -> None:
        inner = self.inner
        channels = self.num_channels
        self.up = parameter((inner, channels), self.tensor_axis, init=0.0, role="position")  # W_up
        self.down = parameter((channels, inner), self.tensor_axis, role="position")  # W_down
        self.multiply_adds += inner * channels**2 + channels**2 * self.config.head_dim  # build the L x L matrix, apply it

    def forward(self, state: PositionState, attended_state: Tensor | None, m: Tensor) -> PositionState:
        """See StateUpdate.

        What is computed from the arguments on the way to the result is cheap to compute and large to keep, so the backward pass
        computes it again, except for the exchange between ranks.
        """
        assert state.initial is not None
        initial = local_tokens(state.initial, self.tensor_axis)
        delta = state.delta
        if self.tensor_axis.size > 1 and attended_state is not None:
            gained = channels_to_tokens(self._gained(attended_state).to(m.dtype), self.tensor_axis)
            delta = gained if delta is None else delta + gained
            attended_state = None
        if self.by_kernel and self.has_kernel(m.device):
            delta = self._both_by_kernel(initial, delta, attended_state, m)
        else:
            delta = recompute(self._both, initial, delta, attended_state, m)
        return PositionState(state.initial, delta)

    def has_kernel(self, device: torch.device) -> bool:
        """Whether the kernels know this update, and its weights and one token's state fit the registers of a program."""
        known = type(self) is TapeUpdate and self.feed_forward
        fits = self.num_channels <= 32 and self.inner <= 128 and self.config.head_dim <= 128
        return known and fits and device.type in ("cuda", "meta")

    def _both_by_kernel(self, initial: Tensor, delta: Tensor | None, attended_state: Tensor | None, m: Tensor) -> Tensor:
        from megatape.nn.kernels.update import fused_update  # triton need not be installed elsewhere

        gain = None if attended_state is None else self.gain
        return fused_update(initial, delta, attended_state, gain, F.silu(F.linear(m, self.content)), self.up, self.down)

    def _both(self, initial: Tensor, delta: Tensor | None, attended_state: Tensor | None, m: Tensor) -> Tensor:
        if attended_state is not None:
            gained = self._gained(attended_state)
            delta = gained if delta is None else delta + gained
        if self.feed_forward:
            active = F.silu(F.linear(m, self.content))  # [B, N/T, I]
            mixed = self._mixed(PositionState(initial, delta).tensor(self.num_channels), active)
            delta = mixed if delta is None else delta + mixed
        assert delta is not None  # no encoding has neither update
        return delta.to(m.dtype)

    def _gained(self, attended_state: Tensor) -> Tensor:
        """Sum over each channel's query heads of g_h (A_h e): [B, N, H/T, W] -> [B, N, L/T, W], in float32."""
        gained = self._gains().to(STATE_DTYPE) * attended_state.to(STATE_DTYPE)
        channels = self.num_channels // self.tensor_axis.size
        return gained if channels == gained.shape[2] else gained.unflatten(2, (channels, -1)).sum(3)

    def _gains(self) -> Tensor:
        """Of this rank's query heads, [H/T, 1], or [H/T, W] if they differ within a head."""
        return self.gain[:, None]

    def _mixed(self, e: Tensor, active: Tensor) -> Tensor:
        """What the feed-forward update adds to e [B, N/T, L, W]. active: [B, N/T, I]."""
        # The contraction over I involves the token, but the product of the weights, expanded to L x L, does not.
        outer = (self.down.T[:, :, None] * self.up[:, None, :]).flatten(1)  # [I, L * L]
        mixing = (active @ outer).unflatten(-1, (self.num_channels, self.num_channels))  # [B, N/T, L, L]
        return mixing.to(e.dtype) @ e


class Tape(Rope):
    """Full TAPE: e starts as rotary angles, rotates queries and keys, and is updated by attention and feed-forward network.

        score(i, j) = (q_i turned by e_i) . (k_j turned by e_j) / sqrt R
        e <- e + g * (A e)
        e <- e + W_down diag(silu(W_x m)) W_up * e,  m = MLP(h)

    In training the authors draw one random offset per batch; here each sample has its own.
    """

    moves_state = True
    feed_forward: ClassVar[bool] = True
    update_class: ClassVar[type[TapeUpdate]] = TapeUpdate

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.state_width = config.head_dim

    def update(self, tensor_axis: Axis) -> StateUpdate:
        return self.update_class(self.config, tensor_axis, self.moves_state, self.feed_forward)


class TapeAttentionOnly(Tape):
    """Without the feed-forward update (the authors' `adattention`).

    e <- e + g * (A e)
    """

    feed_forward = False


class TapeMlpOnly(Tape):
    """Without the attention update (the authors' `adamlp`): attention runs over the values alone.

    e <- e + W_down diag(silu(W_x m)) W_up * e,  m = MLP(h)
    """

    moves_state = False

"""TAPE (Zhu et al., arXiv 2501.00712, section 3): a position tensor that every layer updates from the content.

    score(i, j) = (q_i turned by e_i) . (k_j turned by e_j) / sqrt R
    A = causal softmax of the scores
    e <- e + g * (A e)                                            attention: averages e with the weights of the values
    e <- e + W_down diag(silu(W_x m)) W_up * e,    m = MLP(h)     feed-forward: an L x L matrix for each token

e [B, N, L, R] starts as RoPE's angles: e[..., :R/2] are the cosines and e[..., R/2:] the sines of R/2 planes. Both updates mix
the L channels, with coefficients that are equal for all planes. This keeps the model a function of relative positions.
docs/tape_in_five_minutes.md explains the equations.

The authors' code stores each angle twice, in two tensors that stay identical; here it is stored once. Their attention gain is
an L x L matrix, but the contraction sums over its columns, so it acts as one scalar per head; here this scalar is stored.

Shapes as in model/transformer.py.
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
from megatape.nn.remat.recompute import recompute

# Largest sizes at which the weights and one token's state fit in the registers of a Triton program.
MAX_KERNEL_CHANNELS = 32
MAX_KERNEL_INNER = 128
MAX_KERNEL_HEAD_DIM = 128


class TapeUpdate(StateUpdate):
    """Both updates of e in one layer.

    With grouped queries, all query heads in a group move the group's channel l, each with its own gain:

        e_l <- e_l + sum over heads h in the group of g_h (A_h e_l)

    Ablations override the methods that make parameters and compute updates.

    Attributes:
        gain: g, [H], sharded by heads. Only with the attention update.
        content: W_x, [I, D], on all tensor-parallel ranks. Only with the feed-forward update, like up and down.
        up: W_up, [I, L], on all ranks.
        down: W_down, [L, I], on all ranks.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensor_axis: Axis,
        attention: bool = True,
        feed_forward: bool = True,
    ) -> None:
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
            self.content = parameter((self.inner, config.hidden_size), tensor_axis, role="position")
            self.multiply_adds += self.content.numel()
            self._make_mixing()

    def _make_gain(self) -> None:
        # The gain starts at zero, so positions start out rotary. In the authors' matrix, only the sum of each row's L entries
        # matters, and Adam moves every entry by the learning rate. So the gain here learns L times as fast.
        self.gain = parameter(
            (self.config.num_heads,),
            self.tensor_axis,
            0,
            init=0.0,
            lr_scale=self.num_channels,
        )

    def _make_mixing(self) -> None:
        inner = self.inner
        channels = self.num_channels
        self.up = parameter((inner, channels), self.tensor_axis, init=0.0, role="position")
        self.down = parameter((channels, inner), self.tensor_axis, role="position")
        build_matrix = inner * channels**2
        apply_matrix = channels**2 * self.config.head_dim
        self.multiply_adds += build_matrix + apply_matrix

    def forward(self, state: PositionState, attended_state: Tensor | None, m: Tensor) -> PositionState:
        """Compute the state after this layer, see StateUpdate. The backward pass repeats all but the exchange between ranks."""
        assert state.initial is not None
        initial = local_tokens(state.initial, self.tensor_axis)
        delta = state.delta
        if self.tensor_axis.size > 1 and attended_state is not None:
            # Here a rank has all tokens of its heads. Below it needs all channels of its tokens.
            gained = channels_to_tokens(self._gained(attended_state).to(m.dtype), self.tensor_axis)
            delta = _add(delta, gained)
            attended_state = None
        if self.by_kernel and self.has_kernel(m.device):
            delta = self._update_by_kernel(initial, delta, attended_state, m)
        else:
            delta = recompute(self._update, initial, delta, attended_state, m)
        return PositionState(state.initial, delta)

    def _update(
        self,
        initial: Tensor,
        delta: Tensor | None,
        attended_state: Tensor | None,
        m: Tensor,
    ) -> Tensor:
        """Return delta [B, N/T, L, W] after both updates, in the dtype of m."""
        if attended_state is not None:
            # e <- e + g * (A e)
            delta = _add(delta, self._gained(attended_state))
        if self.feed_forward:
            # e <- e + W_down diag(silu(W_x m)) W_up * e
            active = F.silu(F.linear(m, self.content))  # [B, N/T, I]
            # e is large. Without a name, its memory is free before the addition.
            mixed = self._mixed(PositionState(initial, delta).tensor(self.num_channels), active)
            delta = _add(delta, mixed)
        # Every encoding has at least one of both updates.
        assert delta is not None
        return delta.to(m.dtype)

    def _gained(self, attended_state: Tensor) -> Tensor:
        """Return g * (A e), summed over each channel's query heads, [B, N, H/T, W] -> float32 [B, N, L/T, W]."""
        gained = self._gains().to(STATE_DTYPE) * attended_state.to(STATE_DTYPE)  # [B, N, H/T, W]
        channels = self.num_channels // self.tensor_axis.size
        if gained.shape[2] == channels:
            return gained
        return gained.unflatten(2, (channels, -1)).sum(3)

    def _gains(self) -> Tensor:
        """Return the gains of this rank's query heads, [H/T, 1], or [H/T, W] in ablations."""
        return self.gain[:, None]

    def _mixed(self, e: Tensor, active: Tensor) -> Tensor:
        """Return what the feed-forward update adds to e, W_down diag(active) W_up e [B, N/T, L, W].

        Args:
            e: Position tensor [B, N/T, L, W].
            active: silu(W_x m), [B, N/T, I].
        """
        num_channels = self.num_channels
        # Each token's matrix is a sum over I of outer products of the weights, which all tokens share, times its activations.
        down = self.down.T[:, :, None]  # [I, L, 1]
        up = self.up[:, None, :]  # [I, 1, L]
        outer = (down * up).flatten(1)  # [I, L * L]
        mixing = (active @ outer).unflatten(-1, (num_channels, num_channels))  # [B, N/T, L, L]
        return mixing.to(e.dtype) @ e

    def has_kernel(self, device: torch.device) -> bool:
        """Whether our Triton kernels support this update, its sizes and the device."""
        is_supported = type(self) is TapeUpdate and self.feed_forward
        fits = (
            self.num_channels <= MAX_KERNEL_CHANNELS
            and self.inner <= MAX_KERNEL_INNER
            and self.config.head_dim <= MAX_KERNEL_HEAD_DIM
        )
        return is_supported and fits and device.type in ("cuda", "meta")

    def _update_by_kernel(
        self,
        initial: Tensor,
        delta: Tensor | None,
        attended_state: Tensor | None,
        m: Tensor,
    ) -> Tensor:
        # Imported here, because Triton is only needed on GPUs.
        from megatape.encodings.kernels.update import fused_update

        gain = self.gain if attended_state is not None else None
        active = F.silu(F.linear(m, self.content))  # [B, N/T, I]
        return fused_update(initial, delta, attended_state, gain, active, self.up, self.down)


def _add(delta: Tensor | None, addition: Tensor) -> Tensor:
    """Add to e's second term, which is None before the first update."""
    if delta is None:
        return addition
    return delta + addition


class Tape(Rope):
    """Full TAPE: e starts as rotary angles, rotates queries and keys, and is updated by attention and the feed-forward network.

    While training, the authors draw one random position offset per batch. Here each sample has its own.
    """

    equation = """
        score(i, j) = (q_i turned by e_i) . (k_j turned by e_j) / sqrt R
        e <- e + g * (A e)
        e <- e + W_down diag(silu(W_x m)) W_up * e,  m = MLP(h)
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
    """TAPE without the feed-forward update (the authors' `adattention`)."""

    equation = "e <- e + g * (A e)"
    feed_forward = False


class TapeMlpOnly(Tape):
    """TAPE without the attention update (the authors' `adamlp`): attention only averages the values."""

    equation = "e <- e + W_down diag(silu(W_x m)) W_up * e,  m = MLP(h)"
    moves_state = False

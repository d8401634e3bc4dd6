"""TAPE: a position tensor that every layer updates from the content (arXiv 2501.00712, section 3).

Shapes: B batch, N tokens, C hidden, H query heads, L position channels (= key/value heads), R head size, I inner size.

    e [B, N, L, R]   the position tensor; e[..., :R/2] are cosines and e[..., R/2:] sines of R/2 planes

Each angle is stored once. The authors' code stores it twice, in two tensors of full width; every update of TAPE is linear
over L with coefficients that do not depend on the plane, so both halves stay identical and one is enough.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from megatape.config import ModelConfig
from megatape.parallel.collectives import SINGLE, TensorRanks, channels_to_tokens, replicated
from megatape.parallel.layers import sharded

# The position residual is kept in float32 whatever the compute precision: docs/benchmarks.md, "Precision of the position tensor".
STATE_DTYPE = torch.float32


def initial_state(positions: Tensor, num_channels: int, head_dim: int, base: float) -> Tensor:
    """Rotary embedding of `positions` [B, N] as a position tensor [B, N, L, R], the same for all L channels (a view).

    The angles n * base^(-2k/R) are computed in float64: in float32 they are wrong by 3e-4 at position 131072."""
    plane = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions.device)
    angles = positions.to(torch.float64)[..., None] * base ** (-plane / head_dim)
    state = torch.cat([angles.cos(), angles.sin()], dim=-1).to(STATE_DTYPE)
    return state[:, :, None].expand(-1, -1, num_channels, -1)


class PositionUpdate(nn.Module):
    """The two updates of e in one layer (equations of docs/model.md):

        e <- e + g * (A e)                            attention: the weights A that move the values move the positions
        e <- e + W_down diag(silu(W_x m)) W_up * e    feed-forward: an L x L matrix for every token, made from m = MLP(h)

    Both act on the channel axis L with coefficients that do not depend on the plane, which is what keeps the model a function
    of relative positions. With grouped queries, channel l is moved by all query heads of its group, each with its own gain:
    e_l += sum over the group's heads h of g_h (A_h e_l).

    The authors write the attention gain as an L x L matrix, but their contraction sums it over columns; it acts as the one
    scalar per head that is stored here."""

    def __init__(self, config: ModelConfig, ranks: TensorRanks = SINGLE) -> None:
        super().__init__()
        self.ranks = ranks
        channels, inner = config.num_kv_heads, config.position_size
        self.num_channels = channels
        self.gain = sharded((config.num_heads,), 0, ranks)  # g, zero at the start
        self.content = nn.Parameter(torch.empty(inner, config.hidden_size))  # W_x
        self.up = nn.Parameter(torch.empty(inner, channels))  # W_up, zero at the start
        self.down = nn.Parameter(torch.empty(channels, inner))  # W_down

    def forward(self, e: Tensor, moved: Tensor, m: Tensor) -> Tensor:
        """e: [B, N/T, L, R]; moved: [B, N, H/T, R], A e of this rank's query heads; m: [B, N/T, C], output of the MLP.

        Returns the new e. What lies between is cheap to compute and large to keep, so the backward pass computes it again; but
        not what crossed ranks."""
        if self.ranks.size == 1:
            return checkpoint(self._both, e, moved, m, use_reentrant=False, preserve_rng_state=False)
        brought = channels_to_tokens(self._gained(moved), self.ranks)
        return checkpoint(self._feed_forward, e + brought, m, use_reentrant=False, preserve_rng_state=False)

    def _both(self, e: Tensor, moved: Tensor, m: Tensor) -> Tensor:
        return self._feed_forward(e + self._gained(moved), m)

    def _gained(self, moved: Tensor) -> Tensor:
        """Sum over each channel's query heads of g_h (A_h e): [B, N, H/T, R] -> [B, N, L/T, R], in the dtype of e."""
        gain = self.gain.to(STATE_DTYPE).view(self.num_channels // self.ranks.size, 1, -1)
        return (gain @ moved.to(STATE_DTYPE).unflatten(2, (gain.shape[0], -1))).squeeze(3)

    def _feed_forward(self, e: Tensor, m: Tensor) -> Tensor:
        content, up, down = (replicated(weight, self.ranks) for weight in (self.content, self.up, self.down))
        active = F.silu(F.linear(m, content))  # [B, N/T, I]
        # Contracting the weights over I first would need the token; expanding their product over L x L does not.
        outer = (down.T[:, :, None] * up[:, None, :]).flatten(1)  # [I, L * L]
        mixing = (active @ outer).unflatten(-1, (self.num_channels, self.num_channels))  # [B, N/T, L, L]
        return e + mixing.to(e.dtype) @ e

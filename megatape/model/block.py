"""One transformer block over two residual streams, content x [B, N, C] and what is added to the encoding's state e; with TAPE:

      x ─────┬──────────────────────► + ──┬──────────────────► + ──► x
             │                        ▲   │                    ▲
             └► norm ► q, k, v ─┐     │   └► norm ► MLP ► m ───┤
                                ▼     │                        ▼
                          ┌─ attention ─ A v ► W_o      L x L matrix of m
                          │     ▲ │                            │
      e ──────────────────┴─────┘ └ A e ► gain ► + ──────────► × + ──► e

The lower stream is e without its initial value, which is a function of the position: it starts at zero and takes half the
bytes in bfloat16, where e itself would lose its angles. With other encodings e is constant (`rope`) or absent (`nope`): nothing
updates it, and attention moves only the content. Shapes as in model/transformer.py.

For the backward pass the MLP's norm keeps its input x, and the position update m. So where e moves, the next block's norm keeps
these two in place of their sum.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from megatape.attention.operation import Backends, load
from megatape.config import ModelConfig
from megatape.model.attention import Attention
from megatape.model.encodings.encoding import Encoding
from megatape.model.mlp import MLP
from megatape.model.norm import RMSNorm
from megatape.parallel.mesh import SINGLE, Axis
from megatape.parallel.recompute import Origin, origin_of


class Parts(NamedTuple):
    """Block.feed_forward and Block.position, or what torch.compile has made of them."""

    feed_forward: Callable[..., tuple[Tensor, Tensor | None, Origin | None]]
    position: Callable[..., Tensor] | None


class Block(nn.Module):
    """Pre-norm attention and feed-forward network, each of which updates both streams.

    selective: keep what matrix products and attention have computed; the backward pass computes norms and the MLP's product of
    gate and up again, as it always does the elementwise parts of the position update."""

    def __init__(
        self,
        config: ModelConfig,
        encoding: Encoding,
        axis: Axis = SINGLE,
        backends: Backends | None = None,
        selective: bool = False,
    ) -> None:
        super().__init__()
        self.selective = selective
        self.attention_norm = RMSNorm(config.hidden_size, config.norm_eps, axis)
        self.attention = Attention(config, encoding, axis, backends)
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps, axis)
        self.mlp = MLP(config.hidden_size, config.mlp_size, axis)
        self.position = encoding.update(axis)
        if self.position is not None:
            self.position.by_kernel = backends is not None and load(backends[0]).updates_by_kernel
        self.compiled: Parts | None = None  # model/compiled.py sets it

    def forward(
        self,
        x: Tensor,
        state: Tensor | None,
        moved: Tensor | None,
        document_starts: Tensor | None,
        move: bool,
        dropout_seeds: Tensor | None = None,
        origin: Origin | None = None,
    ) -> tuple[Tensor, Tensor | None, Origin | None]:
        """Returns both streams after this block: x, and what blocks have added to the state; and the origin of x.

        x: [B, N/T, C]; state: that of all tokens before any block, which is no stream; moved: [B, N/T, L, W], or None in front
        of the first update; document_starts: [B, N] or None; move: whether anything reads what this block adds;
        dropout_seeds: [B] or None; origin: of x, as the block before returned it."""
        normed, again = self._normed(self.attention_norm, x, origin)
        attended, attended_positions = self.attention(normed, state, moved, document_starts, move, dropout_seeds, again)
        # In training only: evaluation has other shapes and cases, each of which would be compiled.
        compiled = self.compiled if self.training else None
        feed_forward, position = compiled or Parts(self.feed_forward, self.position)
        if not move or state is None or position is None:
            x, _, _ = feed_forward(x, attended, dropout_seeds, False)
            return x, moved, None
        x, m, origin = feed_forward(x, attended, dropout_seeds, True)
        return x, position(state, moved, attended_positions, m), origin

    def feed_forward(
        self, x: Tensor, attended: Tensor, dropout_seeds: Tensor | None, updates: bool
    ) -> tuple[Tensor, Tensor | None, Origin | None]:
        """Returns x after attention and MLP, and with `updates`, if the position update reads it, the MLP's output m and the
        origin of x."""
        x = x + attended
        normed, again = self._normed(self.mlp_norm, x)
        m = self.mlp(normed, dropout_seeds, again)
        if not updates:
            return x + m, None, None
        return x + m, m, origin_of(torch.add, x, m)  # the norm keeps x, and the position update m

    def _normed(self, norm: RMSNorm, x: Tensor, origin: Origin | None = None) -> tuple[Tensor, Origin | None]:
        """norm(x), and with `selective` its origin. origin: of x."""
        normed = norm(x, origin)
        if not self.selective:
            return normed, None
        return normed, origin_of(norm, x) if origin is None else origin.then(norm)

"""One transformer block over two residual streams, content x [B, N, C] and position e [B, N, L, R].

      x ─────┬──────────────────────► + ──┬──────────────────► + ──► x
             │                        ▲   │                    ▲
             └► norm ► q, k, v ─┐     │   └► norm ► MLP ► m ───┤
                                ▼     │                        ▼
                          ┌─ attention ─ A v ► W_o      L x L matrix of m
                          │     ▲ │                            │
      e ──────────────────┴─────┘ └ A e ► gain ► + ──────────► × + ──► e

For `rope` the lower stream never changes: it has no updates, and attention moves the content only.
"""

from torch import Tensor, nn

from megatape.config import ModelConfig
from megatape.model.attention import Attention
from megatape.model.position import PositionUpdate
from megatape.parallel.collectives import SINGLE, TensorRanks
from megatape.parallel.layers import MLP, RMSNorm


class Block(nn.Module):
    """Pre-norm attention and feed-forward, each of which moves both streams."""

    def __init__(self, config: ModelConfig, ranks: TensorRanks = SINGLE) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.norm_eps, ranks)
        self.attention = Attention(config, ranks)
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps, ranks)
        self.mlp = MLP(config.hidden_size, config.mlp_size, ranks)
        self.position = PositionUpdate(config, ranks) if config.encoding == "tape" else None

    def forward(self, x: Tensor, e: Tensor, starts: Tensor | None, move: bool) -> tuple[Tensor, Tensor]:
        """x: [B, N/T, C]; e: [B, N/T, L, R]; starts: [B, N] or None. `move`: whether anything reads the new e."""
        move = move and self.position is not None
        attended, moved = self.attention(self.attention_norm(x), e, starts, move)
        x = x + attended
        m = self.mlp(self.mlp_norm(x))
        if self.position is not None and moved is not None:
            e = self.position(e, moved, m)
        return x + m, e

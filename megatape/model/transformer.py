"""The language model: embedding -> blocks -> norm -> logits or loss.

Shapes: B batch, N tokens, C hidden, L position channels, R head size, V vocabulary.
"""

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from megatape.config import ModelConfig
from megatape.model.block import Block
from megatape.model.layers import Embedding, Linear, RMSNorm
from megatape.model.position import initial_state

IGNORED = -100  # a target that takes no part in the loss


class Transformer(nn.Module):
    """Decoder-only transformer with TAPE or rotary positions.

    activation_checkpointing: keep only the two streams between blocks and compute the rest again in the backward pass."""

    def __init__(self, config: ModelConfig, activation_checkpointing: bool = False) -> None:
        super().__init__()
        self.config = config
        self.activation_checkpointing = activation_checkpointing
        self.embedding = Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.head = None if config.tie_embeddings else Linear(config.hidden_size, config.vocab_size)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        starts: Tensor | None = None,
        targets: Tensor | None = None,
        states: list[tuple[Tensor, Tensor]] | None = None,
    ) -> Tensor:
        """tokens, positions, starts, targets: [B, N] integers.

        positions: of each token, with the training offset if there is one. starts: index of the first token that each token
        may attend to (packed documents), or None. Returns logits [B, N, V], or with `targets` the float32 sum of their
        cross entropies (IGNORED ones excepted). `states`, a list, receives the pair (x, e) after every block; only then is
        the last block's position update computed, since nothing else reads it."""
        config = self.config
        x = self.embedding(tokens)
        e = initial_state(positions, config.num_kv_heads, config.head_dim, config.rotary_base)
        for index, block in enumerate(self.blocks):
            move = index < config.num_layers - 1 or states is not None
            if self.activation_checkpointing and self.training:
                x, e = checkpoint(block, x, e, starts, move, use_reentrant=False, preserve_rng_state=False)
            else:
                x, e = block(x, e, starts, move)
            if states is not None:
                states.append((x, e))
        x = self.norm(x)
        logits = F.linear(x, self.embedding.weight) if self.head is None else self.head(x)
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="sum")

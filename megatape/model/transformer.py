"""The language model: embedding -> blocks -> norm -> logits or loss.

Shapes, here and in the other modules of model/:

    B  batch                     C  hidden size
    N  tokens of a sequence      H  query heads
    V  vocabulary                L  key/value heads = position channels
    T  tensor-parallel ranks     R  size of a head
                                 W  width of one channel of the encoding's state (R for TAPE: cosines and sines of R/2 planes)

With one rank T is 1, and N/T, H/T and L/T are N, H and L. With more, each rank holds N/T tokens
between the sublayers and all N tokens of its heads inside attention and MLP.
"""

from typing import Any

from torch import Tensor, nn

from megatape.attention.operation import Backends
from megatape.attention.rotation import whole_state
from megatape.config import ActivationCheckpointing, ModelConfig
from megatape.model.block import Block
from megatape.model.encodings import encoding_of
from megatape.model.lora import add_adapters
from megatape.model.norm import RMSNorm
from megatape.parallel.layers import VocabularyEmbedding, VocabularyHead
from megatape.parallel.layout import own_tokens
from megatape.parallel.mesh import SINGLE, Axis
from megatape.parallel.parameters import never_decay
from megatape.parallel.recompute import recompute


class Transformer(nn.Module):
    """Decoder-only transformer with one of the position encodings.

    activation_checkpointing: selective: as Block has it; full: keep only the two streams between blocks.
    backends: of attention, in order of preference; None: all."""

    def __init__(
        self,
        config: ModelConfig,
        activation_checkpointing: ActivationCheckpointing = "none",
        axis: Axis = SINGLE,
        backends: Backends | None = None,
    ) -> None:
        super().__init__()
        self.config, self.axis = config, axis
        self.encoding = encoding_of(config)
        self.recompute_blocks = activation_checkpointing == "full"
        self.embedding = VocabularyEmbedding(config.vocab_size, config.hidden_size, axis)
        selective = activation_checkpointing == "selective"
        blocks = [Block(config, self.encoding, axis, backends, selective) for _ in range(config.num_layers)]
        # Nothing reads the state after the last block, so its update gets no gradient, and only
        # weight decay would change it.
        if blocks[-1].position is not None:
            never_decay(blocks[-1].position)
        self.blocks = nn.ModuleList(blocks)
        if config.lora is not None:
            add_adapters(self.blocks, config.lora)
        self.norm = RMSNorm(config.hidden_size, config.norm_eps, axis)
        self.head = VocabularyHead(config.vocab_size, config.hidden_size, axis, tied=config.tie_embeddings)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        document_starts: Tensor | None = None,
        targets: Tensor | None = None,
        states: list[tuple[Tensor, Tensor | None]] | None = None,
        dropout_seeds: Tensor | None = None,
    ) -> Tensor:
        """Logits [B, N, ceil(V / T)]; with targets, the float32 sum of their cross entropies,
        without those that are IGNORE_INDEX.

        tokens, positions, targets: [B, N] integers; positions include the training offset. document_starts: [B, N], the
        index of the first token that each token may attend to (packed documents), or None. states: a list that receives
        (x, e) after every block; only then is the last block's update of e computed, since nothing else reads it.
        dropout_seeds: [B], a random number of each sample, from which adapters draw their dropout; None: no dropout."""
        config = self.config
        x = self.encoding.embed(self.embedding(tokens), own_tokens(positions, self.axis))
        state, moved, origin = self.encoding.state(positions), None, None
        for index, block in enumerate(self.blocks):
            move = index < config.num_layers - 1 or states is not None
            x, moved, origin = self.run_block(block, x, state, moved, document_starts, move, dropout_seeds, origin)
            if states is not None:
                states.append((x, self.own_state(state, moved)))
        return self.head(self.norm(x), targets, self.embedding.weight if config.tie_embeddings else None)

    def run_block(self, block: nn.Module, *args: Any) -> Any:
        """block(*args), or what keeps only the arguments, with full activation checkpointing in training."""
        return recompute(block, *args) if self.recompute_blocks and self.training else block(*args)

    def own_state(self, state: Tensor | None, moved: Tensor | None) -> Tensor | None:
        """The state of this rank's tokens, [B, N/T, L, W] if blocks move it. state, moved: as a block takes them."""
        if state is None or not self.encoding.carries_state:
            return state
        return whole_state(own_tokens(state, self.axis), moved, self.config.num_kv_heads)

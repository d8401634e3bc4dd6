"""The language model: embedding -> blocks -> norm -> logits or loss.

Shapes, here and in the other modules of model/:

    B  batch                     D  hidden size
    N  tokens of a sequence      H  query heads
    K  keys, N in training       L  key/value heads = position channels
    V  vocabulary                R  size of a head
    T  tensor-parallel ranks     W  width of one channel of the encoding's state (R for TAPE: cosines and sines of R/2 planes)
    S  sequence-parallel ranks   I  inner size of TAPE's feed-forward update
    P  context-parallel ranks

With one rank T is 1, and N/T, H/T and L/T are N, H and L. With more, each rank holds N/T tokens
between the sublayers and all N tokens of its heads inside attention and MLP.

Sequence-parallel ranks (model/sequence_parallel.py) split a sample around all of that: N then stands for N/S tokens.
Only attention itself, from rotation and biases to A v and A e, has all N tokens, for 1/S of the heads. Context-parallel ranks
split it before: N then stands for this rank's N/P tokens, in attention too, where keys and values of the other ranks pass by
(attention/backends/blocked.py).
"""

import torch
from torch import Tensor, nn

from megatape.attention.rotation import PositionState
from megatape.config import ModelConfig
from megatape.distributed.layout import MaybeTensor, local_tokens
from megatape.encodings import encoding_of
from megatape.encodings.encoding import Encoding, positioned_layers
from megatape.model.block import Block, Streams
from megatape.model.options import DEFAULT_OPTIONS, ModelOptions
from megatape.nn.dropout import draw_dropout_from
from megatape.nn.loss import LossFormula
from megatape.nn.norm import normalization
from megatape.nn.parameters import never_decay
from megatape.nn.vocabulary import VocabularyEmbedding, VocabularyHead


class Transformer(nn.Module):
    """Decoder-only transformer with a position encoding, made by model/build.py."""

    def __init__(self, config: ModelConfig, options: ModelOptions = DEFAULT_OPTIONS, block_class: type[Block] = Block) -> None:
        """Make a model whose weights are uninitialized.

        Args:
            config: Model configuration.
            options: Layout, functions and savings beside the equations.
            block_class: Class of the blocks.
        """
        super().__init__()
        layout = options.layout
        axis = layout.tensor_axis
        self.config = config
        self.layout = layout
        self.encoding = encoding_of(config)
        self.embedding = VocabularyEmbedding(config.vocab_size, config.hidden_size, axis)
        self.position_embedding = options.configure(self.encoding.embedding(axis))
        self.state_start = options.configure(self.encoding.start(axis))

        positioned = positioned_layers(config)
        # No block reads the position state after the last one that has positions.
        last = positioned[-1]
        self.blocks = nn.ModuleList()
        for index in range(config.num_layers):
            encoding = self.encoding if index in positioned else Encoding(config)
            self.blocks.append(block_class(config, encoding, options, index, is_read=index != last))
        unread_update = self.last_positioned_block.position
        if unread_update is not None:
            # Without a gradient, only weight decay would change it.
            never_decay(unread_update)

        self.norm = normalization(config, config.hidden_size, axis)
        formula = LossFormula(
            config.vocab_size, axis, config.logit_softcap, z_loss=options.z_loss, by_kernel=options.loss_by_kernel
        )
        self.head = VocabularyHead(config.hidden_size, formula, tied=config.tie_embeddings)

    @property
    def last_positioned_block(self) -> Block:
        """The last block that has positions."""
        block = self.blocks[positioned_layers(self.config)[-1]]
        assert isinstance(block, Block)
        return block

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        document_starts: Tensor | None = None,
        targets: Tensor | None = None,
        dropout_seeds: Tensor | None = None,
    ) -> Tensor:
        """Return logits or, with targets, the loss.

        Args:
            tokens: Token ids of whole samples, [B, N]. All arguments are those of whole samples, even if ranks split them.
            position_ids: Position ids including the training offset, [B, N]. By default tokens are numbered from 0.
            document_starts: Index of the first token that each token may attend to, [B, N], or None without documents.
            targets: Target ids or IGNORE_INDEX, [B, N], or None.
            dropout_seeds: Random number of each sample for drawing its adapters' dropout, [B]. None for no dropout.

        Returns:
            Logits of this rank's tokens, [B, N/(P S), ceil(V / T)], or with targets their summed cross entropy in float32.
        """
        if position_ids is None:
            position_ids = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        initial = self.encoding.state(self.layout.in_attention(position_ids))
        document_starts = self.layout.in_attention(document_starts)
        token_indices = None
        if dropout_seeds is not None:
            token_indices = self.local(torch.arange(tokens.shape[1], device=tokens.device)[None])

        x = self.embedding(self.local(tokens))
        if self.position_embedding is not None:
            x = self.position_embedding(x, local_tokens(self.local(position_ids), self.layout.tensor_axis))
        delta = None
        if self.state_start is not None:
            delta, _ = self.state_start(x, document_starts, ())

        streams = Streams(x, PositionState(initial, delta))
        with draw_dropout_from(dropout_seeds, token_indices):
            for block in self.blocks:
                streams = block(streams, document_starts)

        tied = self.embedding.weight if self.config.tie_embeddings else None
        return self.head(self.norm(streams.x), self.local(targets), tied)

    def local(self, x: MaybeTensor) -> MaybeTensor:
        """Return this rank's tokens [B, N/(P S)] of a tensor [B, N] without a gradient. None stays None."""
        return self.layout.local(x)

"""The language model: embedding -> blocks -> norm -> logits or loss.

Shapes, here and in the other modules of model/:

    B  batch                     D  hidden size
    M  tokens of a whole sample  H  query heads
    N  tokens of a layer         L  key/value heads = position channels
    K  keys, N in training       R  size of a head
    V  vocabulary                W  width of one channel of the encoding's state (R for TAPE: cosines and sines of R/2 planes)
    T  tensor-parallel ranks     I  inner size of TAPE's feed-forward update
    S  sequence-parallel ranks
    P  context-parallel ranks

With one rank M and N are equal, and N/T, H/T and L/T are N, H and L. With tensor-parallel ranks, each rank holds N/T tokens
between the sublayers and all N tokens of its heads inside attention and MLP.

Context- and sequence-parallel ranks split the sample (model/layout.py). N is M/P in attention itself, from rotation and biases
to A v and A e, where each sequence-parallel rank has 1/S of the heads (model/wrappers/sequence_parallel.py), and the keys and
values of other context-parallel ranks pass by (attention/blocked/ring.py). Everywhere else N is M/(P S).
"""

import torch
from torch import Tensor, nn

from megatape.attention.rotation import PositionState
from megatape.config import ModelConfig
from megatape.distributed.layout import MaybeTensor, local_tokens
from megatape.encodings import encoding_of, layer_encodings
from megatape.encodings.encoding import positioned_layers
from megatape.model.block import Block, Streams
from megatape.model.options import DEFAULT_OPTIONS, ModelOptions
from megatape.nn.dropout import Samples
from megatape.nn.forward_context import changed_context
from megatape.nn.loss import LossFormula
from megatape.nn.norm import normalization
from megatape.nn.parameters import check_declared, never_decay
from megatape.nn.vocabulary import VocabularyEmbedding, VocabularyHead


class Transformer(nn.Module):
    """Decoder-only transformer with a position encoding, made by model/build.py."""

    def __init__(self, config: ModelConfig, options: ModelOptions = DEFAULT_OPTIONS, block_class: type[Block] = Block) -> None:
        """Make a model whose weights are uninitialized.

        Args:
            config: Model configuration.
            options: Layout, functions and memory savings, in addition to the equations.
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

        self.blocks = _make_blocks(config, options, block_class)
        check_declared(self)
        unread_update = self.last_positioned_block.position
        if unread_update is not None:
            # Without a gradient, only weight decay would change it.
            never_decay(unread_update)

        self.norm = normalization(config, config.hidden_size, axis)
        formula = LossFormula(
            config.vocab_size,
            axis,
            config.logit_softcap,
            z_loss=options.training.z_loss,
            by_kernel=options.kernels.loss_by_kernel,
        )
        self.head = VocabularyHead(config.hidden_size, formula, tied=config.tie_embeddings)

    @property
    def last_positioned_block(self) -> Block:
        """The last block with the model's encoding."""
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
            tokens: Token ids of whole samples, [B, M]. All arguments are those of whole samples, even if ranks split them.
            position_ids: Position ids including the training offset, [B, M]. By default tokens are numbered from 0.
            document_starts: Index of the first token that each token may attend to, [B, M], or None without documents.
            targets: Target ids or IGNORE_INDEX, [B, M], or None.
            dropout_seeds: Random number of each sample for drawing its adapters' dropout, [B], or None for no dropout.

        Returns:
            Logits of this rank's tokens, [B, N, ceil(V / T)], or with targets their summed cross entropy in float32.
        """
        token_indices = None
        if dropout_seeds is not None:
            token_indices = self.local(torch.arange(tokens.shape[1], device=tokens.device)[None])
        document_starts = self.layout.in_attention(document_starts)
        streams = self.start(tokens, position_ids, document_starts)
        with changed_context(samples=Samples(dropout_seeds, token_indices)):
            for block in self.blocks:
                streams = block(streams, document_starts)

        return self.head(self.norm(streams.x), self.local(targets), self.tied_weight)

    @property
    def tied_weight(self) -> Tensor | None:
        """Weight of the embedding if the head shares it, or None."""
        if self.config.tie_embeddings:
            return self.embedding.weight
        return None

    def start(self, tokens: Tensor, position_ids: Tensor | None, document_starts: Tensor | None) -> Streams:
        """Return the streams before the first block.

        Args:
            tokens: See `forward`.
            position_ids: See `forward`.
            document_starts: Index of the first token that each token may attend to, on this rank, [B, N/P], or None.
        """
        if position_ids is None:
            position_ids = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        initial = self.encoding.state(self.layout.in_attention(position_ids))
        x = self.embedding(self.local(tokens))
        if self.position_embedding is not None:
            x = self.position_embedding(x, local_tokens(self.local(position_ids), self.layout.tensor_axis))
        delta = None
        if self.state_start is not None:
            delta, _ = self.state_start(x, document_starts, ())
        return Streams(x, PositionState(initial, delta))

    def local(self, x: MaybeTensor) -> MaybeTensor:
        """Return this rank's tokens [B, N] of a tensor [B, M] without a gradient. None stays None."""
        return self.layout.local(x)


def _make_blocks(config: ModelConfig, options: ModelOptions, block_class: type[Block]) -> nn.ModuleList:
    """Make the blocks, each with the encoding and the window of its layer."""
    # No block reads the updated position state after the last one with the model's encoding.
    last = positioned_layers(config)[-1]
    blocks = nn.ModuleList()
    for index, (kind, encoding) in enumerate(zip(config.layer_kinds, layer_encodings(config), strict=True)):
        block = block_class(config, encoding, options, index, is_read=index != last, window=kind.window)
        blocks.append(block)
    return blocks

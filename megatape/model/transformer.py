"""The language model: embedding -> blocks -> norm -> logits or loss; and a record of its residual streams.

Shapes, here and in the other modules of model/:

    B  batch                     D  hidden size
    N  tokens of a sequence      H  query heads
    V  vocabulary                L  key/value heads = position channels
    T  tensor-parallel ranks     R  size of a head
    S  sequence-parallel ranks   W  width of one channel of the encoding's state (R for TAPE: cosines and sines of R/2 planes)
    P  context-parallel ranks

With one rank T is 1, and N/T, H/T and L/T are N, H and L. With more, each rank holds N/T tokens
between the sublayers and all N tokens of its heads inside attention and MLP.

Sequence-parallel ranks (distributed/layout.py) divide a sample around all of that: with S of them, N is the N/S tokens of this
rank everywhere but in attention itself, from rotation and biases to A v and A e, which has all N tokens of 1/S of the heads.
Context-parallel ranks divide it before: with P of them, N is the N/P tokens of this rank in attention, too, where keys and
values of the other ranks pass by (attention/backends/blocked.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from megatape.attention.rotation import PositionState
from megatape.config import ModelConfig
from megatape.distributed.layout import Given, local_tokens, zigzag
from megatape.distributed.mesh import SINGLE, Axis
from megatape.encodings import encoding_of
from megatape.encodings.encoding import Encoding, positioned_layers
from megatape.model.block import Block, Streams
from megatape.nn.dropout import dropout_seeds as drawn_from
from megatape.nn.linear import VocabularyEmbedding, VocabularyHead
from megatape.nn.norm import normalization
from megatape.nn.parameters import never_decay


class Transformer(nn.Module):
    """Decoder-only transformer with one of the position encodings.

    model/build.py makes it, and applies to it from outside what is not in its equations.
    """

    def __init__(self, config: ModelConfig, tensor_axis: Axis = SINGLE) -> None:
        super().__init__()
        self.config = config
        self.tensor_axis = tensor_axis
        self.sequence_axis = self.context_axis = SINGLE  # model/build.py divides samples
        self.encoding = encoding_of(config)
        self.embedding = VocabularyEmbedding(config.vocab_size, config.hidden_size, tensor_axis)
        self.position_embedding, self.state_start = self.encoding.embedding(tensor_axis), self.encoding.start(tensor_axis)
        positioned = positioned_layers(config)
        nope = Encoding(config)
        blocks = [
            Block(config, self.encoding if layer in positioned else nope, tensor_axis) for layer in range(config.num_layers)
        ]
        # Nothing reads the position state after the last block that has positions: its update gets no gradient, and only
        # weight decay would change it.
        last = blocks[positioned[-1]]
        last.moves = False
        if last.position is not None:
            never_decay(last.position)
        self.blocks = nn.ModuleList(blocks)
        self.norm = normalization(config, config.hidden_size, tensor_axis)
        self.head = VocabularyHead(
            config.vocab_size, config.hidden_size, tensor_axis, config.tie_embeddings, config.logit_softcap
        )

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor,
        document_starts: Tensor | None = None,
        targets: Tensor | None = None,
        dropout_seeds: Tensor | None = None,
    ) -> Tensor:
        """Logits or, with targets, the loss.

        Args:
            tokens: [B, N] ids. These and all other arguments are those of whole samples, also where ranks divide them.
            position_ids: [B, N], with the training offset.
            document_starts: [B, N], the first token that each token may attend to (packed documents), or None.
            targets: [B, N] ids or IGNORE_INDEX, or None.
            dropout_seeds: [B], a random number of each sample, from which adapters draw their dropout; None: no dropout.

        Returns:
            Logits [B, N/(P S), ceil(V / T)] of this rank's tokens; with targets, the float32 sum of their cross entropies.
        """
        state = self.encoding.state(zigzag(position_ids, self.context_axis))
        document_starts = zigzag(document_starts, self.context_axis)
        places = None if dropout_seeds is None else torch.arange(tokens.shape[1], device=tokens.device)[None]
        tokens = self.local(tokens)
        position_ids = self.local(position_ids)
        targets = self.local(targets)
        places = self.local(places)
        x = self.embedding(tokens)
        if self.position_embedding is not None:
            x = self.position_embedding(x, local_tokens(position_ids, self.tensor_axis))
        delta = None if self.state_start is None else self.state_start(x, document_starts, ())[0]
        streams = Streams(x, PositionState(state, delta))
        with drawn_from(dropout_seeds, places):
            for block in self.blocks:
                streams = block(streams, document_starts)
        return self.head(self.norm(streams.x), targets, self.embedding.weight if self.config.tie_embeddings else None)

    def local(self, x: Given) -> Given:
        """This rank's share [B, N/(P S)] of something of whole samples [B, N] that takes no gradient; None of None."""
        return local_tokens(zigzag(x, self.context_axis), self.sequence_axis)


@contextmanager
def recorded_streams(model: Transformer) -> Iterator[list[tuple[Tensor, Tensor | None]]]:
    """Inside the block, a list that receives (x, e) of this rank's tokens after every block of a forward pass.

    Only there does the last block that has positions update e, since nothing else reads it.
    """
    found: list[tuple[Tensor, Tensor | None]] = []

    def record(block: nn.Module, inputs: tuple[object, ...], streams: Streams) -> None:
        found.append((streams.x, local_state(model, streams.state)))

    last = model.blocks[positioned_layers(model.config)[-1]]
    assert isinstance(last, Block)
    hooks = [block.register_forward_hook(record) for block in model.blocks]
    last.moves = last.position is not None
    try:
        yield found
    finally:
        last.moves = False
        for hook in hooks:
            hook.remove()


def local_state(model: Transformer, state: PositionState) -> Tensor | None:
    """The state of this rank's tokens, [B, N/S/T, L, W] if blocks move it; that of all tokens otherwise."""
    if state.initial is None or not model.encoding.carries_state:
        return state.initial
    initial = local_tokens(local_tokens(state.initial, model.sequence_axis), model.tensor_axis)
    return state._replace(initial=initial).tensor(model.config.num_kv_heads)

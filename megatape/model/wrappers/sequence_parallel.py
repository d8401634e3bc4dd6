"""Attention and blocks of sequence-parallel ranks, which exchange tokens for heads around attention (distributed/layout.py)."""

from torch import Tensor

from megatape.attention.backend import DocumentStarts
from megatape.attention.rotation import PositionState
from megatape.distributed.layout import heads_to_tokens, local_tokens, tokens_to_heads
from megatape.encodings.encoding import Features
from megatape.model.attention import Attention
from megatape.model.block import Block, Streams


class SequenceParallelAttention(Attention):
    """Attention from this rank's heads to the tokens of all sequence-parallel ranks."""

    def encode_and_attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        features: Features,
        state: PositionState,
        document_starts: DocumentStarts,
    ) -> tuple[Tensor, Tensor | None]:
        axis = self.layout.sequence_axis
        q, k, v, delta = tokens_to_heads(axis, q, k, v, self.delta_for_attention(state))
        exchanged: list[Tensor] = []
        for feature in features:
            exchanged += tokens_to_heads(axis, feature)
        state = PositionState(state.initial, delta)
        content, attended_state = super().encode_and_attend(q, k, v, tuple(exchanged), state, document_starts)
        return heads_to_tokens(axis, content, attended_state)


class SequenceParallelBlock(Block):
    """Block updating the streams of this rank's tokens. Every rank has the initial state of all tokens for attention."""

    def feed_forward(self, streams: Streams, attended: Tensor, attended_state: Tensor | None) -> Streams:
        if not self.updates_state:
            return super().feed_forward(streams, attended, attended_state)
        initial = streams.state.initial
        local_state = streams.state._replace(initial=local_tokens(initial, self.options.layout.sequence_axis))
        after = super().feed_forward(streams._replace(state=local_state), attended, attended_state)
        return after._replace(state=after.state._replace(initial=initial))

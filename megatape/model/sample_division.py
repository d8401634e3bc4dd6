"""How ranks divide the tokens of a sample around a model's equations (distributed/layout.py).

Context-parallel ranks divide a sample everywhere, in attention, too. Sequence-parallel ranks divide the tokens of a
context-parallel rank, and in attention the heads: there each of them has all these tokens.
"""

from dataclasses import dataclass

from torch import Tensor

from megatape.attention.rotation import PositionState
from megatape.distributed.layout import Given, heads_to_tokens, local_tokens, tokens_to_heads, zigzag
from megatape.distributed.mesh import SINGLE, Axis
from megatape.encodings.encoding import Features
from megatape.model.block import Attention, BlockInSteps, Streams


@dataclass(frozen=True)
class SampleDivision:
    """The ranks that divide samples [B, N]. They take shares of tensors without a gradient; None stays None.

    Attributes:
        sequence_axis: The sequence-parallel ranks.
        context_axis: The context-parallel ranks.
    """

    sequence_axis: Axis = SINGLE
    context_axis: Axis = SINGLE

    def in_attention(self, x: Given) -> Given:
        """Return the share [B, N/P] of the tokens with which this rank attends."""
        return zigzag(x, self.context_axis)

    def local(self, x: Given) -> Given:
        """Return the share [B, N/(P S)] of the tokens that this rank computes outside of attention."""
        return local_tokens(self.in_attention(x), self.sequence_axis)


class SequenceParallelAttention(Attention):
    """Attention with the heads of this sequence-parallel rank to the tokens of all of them."""

    def before_attention(
        self, q: Tensor, k: Tensor, v: Tensor, features: Features, state: PositionState
    ) -> tuple[Tensor, Tensor, Tensor, Features, PositionState]:
        axis = self.options.sequence_axis
        q, k, v, delta = tokens_to_heads(axis, q, k, v, state.delta)
        exchanged: list[Tensor] = []
        for feature in features:
            exchanged += tokens_to_heads(axis, feature)
        return q, k, v, tuple(exchanged), PositionState(state.initial, delta)

    def after_attention(self, content: Tensor, attended_state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return heads_to_tokens(self.options.sequence_axis, content, attended_state)


class SequenceParallelBlock(BlockInSteps):
    """A block that updates the streams of this sequence-parallel rank's tokens.

    Every rank has the initial state of all tokens, because attention reads it.
    """

    attention_class = SequenceParallelAttention

    def feed_forward(self, streams: Streams, attended: Tensor, attended_state: Tensor | None) -> Streams:
        if not self.updates_state:
            return super().feed_forward(streams, attended, attended_state)
        initial = streams.state.initial
        own_state = streams.state._replace(initial=local_tokens(initial, self.options.sequence_axis))
        after = super().feed_forward(streams._replace(state=own_state), attended, attended_state)
        return after._replace(state=after.state._replace(initial=initial))

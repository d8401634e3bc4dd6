"""The block in steps, for subclasses that compute one of them in another way. The equations are those of block.py."""

from torch import Tensor

from megatape.model.block import Block, Streams


class SteppedBlock(Block):
    """A block whose `forward` consists of three methods."""

    def forward(self, streams: Streams, document_starts: Tensor | None = None) -> Streams:
        attended, attended_state = self.attend(streams, document_starts)
        x, m = self.feed_forward(streams.x, attended)
        return Streams(x, self.update(streams.state, attended_state, m))

    def attend(self, streams: Streams, document_starts: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the output of attention, and A e or None."""
        return self.attention(self.attention_norm(streams.x), streams.state, document_starts)

    def feed_forward(self, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return x after attention and MLP, and the output m of the MLP if the position update reads it."""
        return feed_forward(self, x, attended)


def feed_forward(block: Block, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return `SteppedBlock.feed_forward` of any block."""
    x = x + attended
    m = block.mlp(block.mlp_norm(x))
    x = x + m
    if not block.updates_state:
        return x, None
    return x, m

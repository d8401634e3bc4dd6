"""The block of block.py with a method for each step, so wrappers can change single steps and be combined."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from megatape.model.block import Block, Streams
from megatape.nn.remat.remat import Remat


class Content(NamedTuple):
    """Content after a block.

    Attributes:
        x: Content of this rank's tokens, [B, N/T, D].
        m: Output of the MLP, [B, N/T, D]. None if the position update does not read it.
        remat_of: See Streams.
    """

    x: Tensor
    m: Tensor | None
    remat_of: Callable[[Tensor], Remat | None] | None = None


class BlockInSteps(Block):
    """Block computing the same as Block.forward, in steps that wrappers override."""

    def forward(self, streams: Streams, document_starts: Tensor | None = None) -> Streams:
        attended, attended_state = self.attend(streams, document_starts)
        return self.feed_forward(streams, attended, attended_state)

    def attend(self, streams: Streams, document_starts: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the output of attention [B, N/T, D], and A e [B, N, H/T, W] if the position update reads it, or None."""
        return self.attention(self.attention_norm(streams.x), streams.state, document_starts)

    def feed_forward(self, streams: Streams, attended: Tensor, attended_state: Tensor | None) -> Streams:
        """Return both streams after this block. Each token is computed alone.

        Args:
            streams: Streams before the block.
            attended: Output of attention, [B, N/T, D].
            attended_state: A e, or None.
        """
        content = self.add_to_content(streams.x, attended)
        state = self.update(streams.state, attended_state, content.m)
        return Streams(content.x, state, content.remat_of)

    def add_to_content(self, x: Tensor, attended: Tensor) -> Content:
        """Add the outputs of attention and MLP to the content."""
        x = x + attended
        m = self.apply_mlp(x)
        return self.add(x, m)

    def apply_mlp(self, x: Tensor) -> Tensor:
        """Return the output of the MLP for the content after attention."""
        return self.mlp(self.mlp_norm(x))

    def add(self, x: Tensor, m: Tensor) -> Content:
        """Add the output of the MLP to the content."""
        return Content(x + m, m)

"""One transformer block over two residual streams.

The streams are the content x [B, N, D] and what is added to the encoding's state e; with TAPE:

      x ─────┬──────────────────────► + ──┬──────────────────► + ──► x
             │                        ▲   │                    ▲
             └► norm ► q, k, v ─┐     │   └► norm ► MLP ► m ───┤
                                ▼     │                        ▼
                          ┌─ attention ─ A v ► W_o      L x L matrix of m
                          │     ▲ │                            │
      e ──────────────────┴─────┘ └ A e ► gain ► + ──────────► × + ──► e

The lower stream is e without its initial value, which is a function of the position: it starts at zero and takes half the
bytes in bfloat16, where e itself would lose its angles. With other encodings e is constant (`rope`) or absent (`nope`): nothing
updates it, and attention moves only the content. Shapes as in model/transformer.py.

Block, Attention (attention.py) and MLP (mlp.py) are the equations, computed by one rank: T = 1. Subclasses change single steps
for layouts of several ranks, memory savings and torch.compile, and model/build.py composes a run's classes from them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from megatape.attention.rotation import PositionState
from megatape.config import ModelConfig
from megatape.encodings.encoding import Encoding
from megatape.model.attention import Attention
from megatape.model.layers import LayerFactory
from megatape.model.mlp import MLP
from megatape.model.options import DEFAULT_OPTIONS, ModelOptions
from megatape.nn.norm import normalization
from megatape.nn.remat.remat import Remat

# Function returning how the backward pass rebuilds a tensor, or None if autograd saves it.
RematOf = Callable[[Tensor], Remat | None]


class Streams(NamedTuple):
    """The two residual streams between blocks.

    Attributes:
        x: Content of this rank's tokens, [B, N/T, D].
        state: Initial state of all tokens, and the sum of all updates so far for this rank's tokens, [B, N/T, L, W].
        remat_of: Function returning how the backward pass rebuilds x, or None if autograd saves x. It is a function, because
            ZeRO stage 3 warns about outputs of unknown types.
    """

    x: Tensor
    state: PositionState
    remat_of: RematOf | None = None


class Block(nn.Module):
    """Pre-norm attention and feed-forward network, both updating both streams.

        x <- x + W_o A v(norm(x))
        m  = MLP(norm(x))
        x <- x + m
        e <- update(e, A e, m)

    `attend` and `feed_forward` are its halves: attention reads other tokens, and the second half computes each token alone.
    Wrappers override these halves, or `apply_mlp` and `add`, and can be combined.

    Attributes:
        updates_state: Whether it updates the position state.
    """

    attention_class: ClassVar[type[Attention]] = Attention
    mlp_class: ClassVar[type[MLP]] = MLP

    def __init__(
        self,
        config: ModelConfig,
        encoding: Encoding,
        options: ModelOptions = DEFAULT_OPTIONS,
        index: int = 0,
        is_read: bool = True,
        window: int | None = None,
    ) -> None:
        """Make a block.

        Args:
            config: Model configuration.
            encoding: Position encoding of this block.
            options: Model options.
            index: Index of this block in the model.
            is_read: Whether a later block reads the position state.
            window: Number of tokens that a token attends to, or None for all tokens before it.
        """
        super().__init__()
        axis = options.layout.tensor_axis
        layers = LayerFactory(index, axis, options.kernels.linear_function, config.lora)
        position = options.configure(encoding.update(axis))
        self.options = options
        self.updates_state = position is not None and is_read
        averages_state = self.updates_state and encoding.moves_state
        self.attention_norm = normalization(config, config.hidden_size, axis)
        self.attention = self.attention_class(config, encoding, options, layers, averages_state, window)
        self.mlp_norm = normalization(config, config.hidden_size, axis)
        self.mlp = self.mlp_class(config, options, layers)
        self.position = position

    def forward(self, streams: Streams, document_starts: Tensor | None = None) -> Streams:
        """Return both streams after this block.

        Args:
            streams: Streams before it.
            document_starts: Index of the first token that each token may attend to, [B, N], or None.
        """
        attended, attended_state = self.attend(streams, document_starts)
        return self.feed_forward(streams, attended, attended_state)

    def attend(self, streams: Streams, document_starts: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the output of attention [B, N/T, D], and A e [B, N, H/T, W] if the position update reads it, or None."""
        x, state, _ = streams
        return self.attention(self.attention_norm(x), state, document_starts)

    def feed_forward(self, streams: Streams, attended: Tensor, attended_state: Tensor | None) -> Streams:
        """Return both streams after this block.

        Args:
            streams: Streams before the block.
            attended: Output of attention, [B, N/T, D].
            attended_state: A e, or None.
        """
        x, state, _ = streams
        x = x + attended
        m = self.apply_mlp(x)
        x, remat_of = self.add(x, m)
        return Streams(x, self.update(state, attended_state, m), remat_of)

    def apply_mlp(self, x: Tensor) -> Tensor:
        """Return the output of the MLP, m, for the content after attention."""
        return self.mlp(self.mlp_norm(x))

    def add(self, x: Tensor, m: Tensor) -> tuple[Tensor, RematOf | None]:
        """Return the content after the block, and how the backward pass rebuilds it, see Streams."""
        return x + m, None

    def update(self, state: PositionState, attended_state: Tensor | None, m: Tensor | None) -> PositionState:
        """Return the position state after this block.

        Args:
            state: Position state before it.
            attended_state: A e, or None.
            m: Output of the MLP, or None if the block does not update the state.
        """
        if self.position is None or not self.updates_state:
            return state
        updated: PositionState = self.position(state, attended_state, m)
        return updated

    @contextmanager
    def reading_state(self) -> Iterator[None]:
        """Update the position state inside the `with` block, even if no later block reads it."""
        if self.position is None:
            yield
            return
        before = self.updates_state
        self.updates_state = True
        try:
            with self.attention.averaging_state():
                yield
        finally:
            self.updates_state = before

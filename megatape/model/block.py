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

The classes here are the equations, computed by one rank: T = 1. Subclasses change single steps for layouts of several ranks,
memory savings and torch.compile, and model/build.py composes a run's classes from them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatape.attention.backend import DocumentStarts
from megatape.attention.bias import ScoreBias
from megatape.attention.rotation import PositionState
from megatape.config import ModelConfig
from megatape.encodings.encoding import Encoding, Features
from megatape.encodings.log_scale import LogScale
from megatape.model.layers import LayerFactory
from megatape.model.options import DEFAULT_OPTIONS, ModelOptions
from megatape.nn.linear import project
from megatape.nn.norm import normalization
from megatape.nn.remat.remat import Remat


class Attention(nn.Module):
    """Grouped-query attention, W_o (A v), with a position encoding.

    The encoding may rotate queries and keys, add a bias to the scores, or have its state averaged with the same weights as the
    values, A e. For layouts of several ranks see tensor_parallel.py and sequence_parallel.py.

    Attributes:
        attend: Function computing attention in evaluation.
        attend_in_training: Function computing attention in training.
        moves_state: Whether the position update reads A e.
    """

    def __init__(
        self, config: ModelConfig, encoding: Encoding, options: ModelOptions, layers: LayerFactory, moves_state: bool
    ) -> None:
        super().__init__()
        axis = options.layout.tensor_axis
        width = config.num_heads * config.head_dim
        kv_width = config.num_kv_heads * config.head_dim
        input_bias = config.attention_bias != "none"
        output_bias = config.attention_bias == "qkvo"
        self.head_dim = config.head_dim
        self.encoding = encoding
        self.layout = options.layout
        self.attend = options.attend
        self.attend_in_training = options.attend_in_training or options.attend
        self.moves_state = moves_state
        self.query = layers.column("query", config.hidden_size, width, input_bias)
        self.key = layers.column("key", config.hidden_size, kv_width, input_bias)
        self.value = layers.column("value", config.hidden_size, kv_width, input_bias)
        self.output = layers.row("output", width, config.hidden_size, output_bias)
        self.query_norm = None
        self.key_norm = None
        if config.qk_norm:
            self.query_norm = normalization(config, config.head_dim, axis)
            self.key_norm = normalization(config, config.head_dim, axis)
        self.token_features = options.configure(encoding.token_features(axis))
        self.sequence_features = options.configure(encoding.sequence_features(axis))
        self.bias = options.configure(encoding.bias(axis))
        self.log_scale = None
        if config.attention_scale == "log_n":
            self.log_scale = options.configure(LogScale(config, axis))

    def forward(self, h: Tensor, state: PositionState, document_starts: DocumentStarts = None) -> tuple[Tensor, Tensor | None]:
        """Attend to content and, if the position update reads A e, to the position state.

        Args:
            h: Normalized content of this rank's tokens, [B, N/T, D].
            state: Position state, as in Streams.
            document_starts: Index of the first token that each token may attend to, [B, N], or None.

        Returns:
            The output [B, N/T, D], and A e of this rank's query heads, [B, N, H/T, W], or None.
        """
        q, k, v = self.heads(h)
        features = self.features(h, q, k)
        content, attended_state = self.encode_and_attend(q, k, v, features, state, document_starts)
        return self.output(content.flatten(2)), attended_state

    def heads(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [B, N, H/T, R], keys and values [B, N, L/T, R], before the encoding rotates them."""
        return self.split_heads(*project(h, self.query, self.key, self.value))

    def split_heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split products into heads, [B, N, heads x R] -> [B, N, heads, R], and normalize queries and keys."""
        q, k, v = (x.unflatten(-1, (-1, self.head_dim)) for x in (query, key, value))
        if self.query_norm is not None and self.key_norm is not None:
            q = self.query_norm(q)
            k = self.key_norm(k)
        return q, k, v

    def features(self, h: Tensor, q: Tensor, k: Tensor) -> Features:
        """Return features that the encoding computes from each token's content, or nothing."""
        if self.token_features is None:
            return ()
        features: Features = self.token_features(h, q, k)
        return features

    def encode_and_attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        features: Features,
        state: PositionState,
        document_starts: DocumentStarts,
    ) -> tuple[Tensor, Tensor | None]:
        """Encode positions and compute attention.

        Args:
            q: Queries [B, N, H/T, R] from `heads`.
            k: Keys [B, N, L/T, R].
            v: Values [B, N, L/T, R].
            features: Result of `features`.
            state: State of all tokens and of this rank's channels, [B, N, L/T, W].
            document_starts: See `forward`.

        Returns:
            A v [B, N, H/T, R], and A e [B, N, H/T, W] or None.
        """
        q, k, bias = self.encode(q, k, features, state.initial, document_starts)
        rotation = None
        if self.encoding.has_position_tensor:
            rotation = state
        attend = self.attend_in_training if self.training else self.attend
        return attend(
            q,
            k,
            v,
            state=rotation,
            bias=bias,
            document_starts=document_starts,
            moves_state=self.moves_state,
        )

    def delta_to_read(self, state: PositionState) -> Tensor | None:
        """Return the part of the state that ranks exchange before attention, or None if this layer does not read it."""
        if not self.encoding.carries_state:
            return None
        return state.delta

    def encode(
        self, q: Tensor, k: Tensor, features: Features, state: Tensor | None, document_starts: DocumentStarts
    ) -> tuple[Tensor, Tensor, ScoreBias | None]:
        """Return encoded queries and keys, and the bias on their scores. Attention itself rotates by a position tensor.

        Args:
            q: Queries [B, N, H/T, R] from `heads`.
            k: Keys [B, N, L/T, R] from `heads`.
            features: Result of `features`.
            state: Result of Encoding.state.
            document_starts: See `forward`.
        """
        if self.sequence_features is not None:
            features, _ = self.sequence_features(features, document_starts, ())
        q, k = self.encoding.rotate_qk(q, k, state, features)
        if self.log_scale is not None:
            num_keys = torch.arange(1, q.shape[1] + 1, device=q.device)[None]
            if document_starts is not None:
                num_keys = num_keys - document_starts
            q = self.log_scale(q, num_keys)
        if self.bias is None:
            return q, k, None
        weights = self.bias(q, k, features)
        return q, k, self.bias.scores(weights, state, past=0)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    return F.silu(gate) * up


class MLP(nn.Module):
    """SwiGLU feed-forward network, W_down (silu(W_gate h) * W_up h), [B, N/T, D] -> [B, N/T, D]."""

    def __init__(self, config: ModelConfig, options: ModelOptions, layers: LayerFactory) -> None:
        super().__init__()
        self.tensor_axis = options.layout.tensor_axis
        self.gate = layers.column("gate", config.hidden_size, config.mlp_size)
        self.up = layers.column("up", config.hidden_size, config.mlp_size)
        self.down = layers.row("down", config.mlp_size, config.hidden_size)

    def forward(self, h: Tensor) -> Tensor:
        gate, up = project(h, self.gate, self.up)
        return self.multiply(gate, up)

    def multiply(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return W_down (silu(gate) * up)."""
        return self.down(swiglu(gate, up))


class Streams(NamedTuple):
    """The two residual streams between blocks.

    Attributes:
        x: Content of this rank's tokens, [B, N/T, D].
        state: Initial state of all tokens, and the sum of all updates so far for this rank's tokens, [B, N/T, L, W].
        remat_of: Function returning how the backward pass rebuilds x. None if autograd saves x. It is a function, because ZeRO
            stage 3 warns about outputs of unknown types.
    """

    x: Tensor
    state: PositionState
    remat_of: Callable[[Tensor], Remat | None] | None = None


class Block(nn.Module):
    """Pre-norm attention and feed-forward network, both updating both streams.

        x <- x + W_o A v(norm(x))
        m  = MLP(norm(x))
        x <- x + m
        e <- update(e, A e, m)

    Wrappers derive from BlockInSteps (block_in_steps.py), where each step is a method.

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
    ) -> None:
        """Make a block.

        Args:
            config: Model configuration.
            encoding: Position encoding of this block.
            options: Model options.
            index: Index of this block in the model.
            is_read: Whether a later block reads the position state.
        """
        super().__init__()
        axis = options.layout.tensor_axis
        layers = LayerFactory(index, axis, options.product, config.lora)
        position = options.configure(encoding.update(axis))
        self.options = options
        self.updates_state = position is not None and is_read
        moves_state = self.updates_state and encoding.moves_state
        self.attention_norm = normalization(config, config.hidden_size, axis)
        self.attention = self.attention_class(config, encoding, options, layers, moves_state)
        self.mlp_norm = normalization(config, config.hidden_size, axis)
        self.mlp = self.mlp_class(config, options, layers)
        self.position = position

    def forward(self, streams: Streams, document_starts: Tensor | None = None) -> Streams:
        """Return both streams after this block.

        Args:
            streams: Streams before it.
            document_starts: Index of the first token that each token may attend to, [B, N], or None.
        """
        x, state, _ = streams
        attended, attended_state = self.attention(self.attention_norm(x), state, document_starts)
        x = x + attended
        m = self.mlp(self.mlp_norm(x))
        return Streams(x + m, self.update(state, attended_state, m))

    def update(self, state: PositionState, attended_state: Tensor | None, m: Tensor | None) -> PositionState:
        """Return the position state after this block.

        Args:
            state: Position state before it.
            attended_state: A e, or None.
            m: Output of the MLP. None if the block does not update the state.
        """
        if self.position is None or not self.updates_state:
            return state
        updated: PositionState = self.position(state, attended_state, m)
        return updated

    @contextmanager
    def reading_state(self) -> Iterator[None]:
        """Update the position state inside the `with` block, even if no later block reads it."""
        before = self.updates_state, self.attention.moves_state
        self.updates_state = self.position is not None
        self.attention.moves_state = self.updates_state and self.attention.encoding.moves_state
        try:
            yield
        finally:
            self.updates_state, self.attention.moves_state = before

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
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatape.attention.attend import Attend, attend
from megatape.attention.backend import DocumentStarts
from megatape.attention.bias import ScoreBias
from megatape.attention.rotation import PositionState
from megatape.config import ModelConfig
from megatape.distributed.layout import heads_to_tokens, local_tokens, tokens_to_channels, tokens_to_heads
from megatape.distributed.mesh import SINGLE, Axis
from megatape.encodings.encoding import Encoding, Features
from megatape.encodings.log_scale import LogScale
from megatape.nn.linear import ColumnLinear, RowLinear, project
from megatape.nn.norm import normalization
from megatape.nn.overlap import begin_gather
from megatape.nn.remat import in_chunks


class Attention(nn.Module):
    """Grouped-query attention; the position encoding rotates queries and keys, biases scores or is moved with the values.

    Attributes:
        attend: `attend` of attention/attend.py, by the backends of a run.
        sparse: Attention within groups of tokens (attention/shifted.py), which takes its place in training, or None.
        sequence_axis: The sequence-parallel ranks, each of which attends with some of the heads to all tokens.
    """

    def __init__(self, config: ModelConfig, encoding: Encoding, tensor_axis: Axis = SINGLE) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.encoding = encoding
        self.tensor_axis = tensor_axis
        self.attend: Attend = attend
        self.sparse: Attend | None = None
        self.sequence_axis = SINGLE
        inputs = config.attention_bias != "none"
        outputs = config.attention_bias == "qkvo"
        self.query = ColumnLinear(config.hidden_size, config.num_heads * config.head_dim, tensor_axis, inputs)
        self.key = ColumnLinear(config.hidden_size, config.num_kv_heads * config.head_dim, tensor_axis, inputs)
        self.value = ColumnLinear(config.hidden_size, config.num_kv_heads * config.head_dim, tensor_axis, inputs)
        self.output = RowLinear(config.num_heads * config.head_dim, config.hidden_size, tensor_axis, outputs)
        self.query_norm = normalization(config, config.head_dim, tensor_axis) if config.qk_norm else None
        self.key_norm = normalization(config, config.head_dim, tensor_axis) if config.qk_norm else None
        self.token_features = encoding.token_features(tensor_axis)
        self.sequence_features = encoding.sequence_features(tensor_axis)
        self.bias = encoding.bias(tensor_axis)
        self.log_scale = LogScale(config, tensor_axis) if config.attention_scale == "log_n" else None

    def forward(
        self, h: Tensor, state: PositionState, document_starts: DocumentStarts = None, move: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attention to the content and, if the encoding asks for it, to the position state.

        Args:
            h: The normalized content of this rank's tokens, [B, N/T, D].
            state: As in Streams.
            document_starts: [B, N], the first token that each token may attend to, or None.
            move: Whether the position update reads A e.

        Returns:
            The output [B, N/T, D] and A e of this rank's query heads, [B, N, H/T, W], or None.
        """
        h = begin_gather(h, self.tensor_axis)
        read = state.delta if self.encoding.carries_state else None  # not by a layer without positions
        delta = tokens_to_channels(read, self.tensor_axis)  # overlaps with the products
        q, k, v = self.heads(h)
        features = () if self.token_features is None else self.token_features(h, q, k)
        del h  # all tokens, which only the products need
        q, k, v, moved = tokens_to_heads(self.sequence_axis, q, k, v, delta.wait())
        features = tuple(part for feature in features for part in tokens_to_heads(self.sequence_axis, feature))
        state = PositionState(state.initial, moved)
        q, k, bias = self.encode(q, k, features, state.initial, document_starts)
        attend = self.sparse if self.sparse is not None and self.training else self.attend
        content, attended_state = attend(
            q,
            k,
            v,
            state=state if self.encoding.has_position_tensor else None,
            bias=bias,
            document_starts=document_starts,
            move=move and self.encoding.moves_state,
        )
        content, attended_state = heads_to_tokens(self.sequence_axis, content, attended_state)
        return self.output(content.flatten(2)), attended_state

    def heads(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, N, H/T, R], keys and values [B, N, L/T, R] before they are rotated, from h [B, N, D]."""
        q, k, v = (x.unflatten(-1, (-1, self.head_dim)) for x in project(h, self.query, self.key, self.value))
        if self.query_norm is not None and self.key_norm is not None:
            q = self.query_norm(q)
            k = self.key_norm(k)
        return q, k, v

    def encode(
        self, q: Tensor, k: Tensor, features: Features, state: Tensor | None, document_starts: DocumentStarts
    ) -> tuple[Tensor, Tensor, ScoreBias | None]:
        """Queries and keys as attention takes them, unless it rotates them itself, and the bias on their scores.

        Args:
            q: [B, N, H/T, R], from `heads`.
            k: [B, N, L/T, R], from `heads`.
            features: From the layer's TokenFeatures, or empty.
            state: From Encoding.state.
            document_starts: As in `forward`.
        """
        if self.sequence_features is not None:
            features, _ = self.sequence_features(features, document_starts, ())
        q, k = self.encoding.rotate_qk(q, k, state, features)
        if self.log_scale is not None:
            last = torch.arange(1, q.shape[1] + 1, device=q.device)[None]
            q = self.log_scale(q, last if document_starts is None else last - document_starts)
        return q, k, None if self.bias is None else self.bias.scores(self.bias(q, k, features), state, past=0)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    return F.silu(gate) * up


class MLP(nn.Module):
    """SwiGLU feed-forward, W_down (silu(W_gate h) * W_up h), [B, N/T, D] -> [B, N/T, D].

    Attributes:
        activation: `swiglu`; model/build.py lets the backward pass compute it again.
    """

    def __init__(self, hidden_size: int, inner_size: int, tensor_axis: Axis = SINGLE) -> None:
        super().__init__()
        self.tensor_axis = tensor_axis
        self.activation: Callable[[Tensor, Tensor], Tensor] = swiglu
        self.gate = ColumnLinear(hidden_size, inner_size, tensor_axis)
        self.up = ColumnLinear(hidden_size, inner_size, tensor_axis)
        self.down = RowLinear(inner_size, hidden_size, tensor_axis)

    def forward(self, h: Tensor) -> Tensor:
        h = begin_gather(h, self.tensor_axis)
        gate, up = project(h, self.gate, self.up)
        del h  # all tokens, which only the products need
        return self.down(self.activation(gate, up))


class Streams(NamedTuple):
    """The two residual streams between blocks.

    Attributes:
        x: The content of this rank's tokens, [B, N/T, D].
        state: The initial state of all tokens, and what blocks have added to that of this rank's tokens, [B, N/T, L, W].
    """

    x: Tensor
    state: PositionState


class Block(nn.Module):
    """Pre-norm attention and feed-forward network, each of which updates both streams.

    Attributes:
        moves: Whether it updates the position state.
        chunk_tokens: How many of this rank's tokens pass MLP and position update at a time; None: all.
        add: The residual sum after the MLP; model/build.py lets the backward pass rebuild it.
        sequence_axis: The sequence-parallel ranks, each of which updates the streams of its own tokens.
    """

    def __init__(self, config: ModelConfig, encoding: Encoding, tensor_axis: Axis = SINGLE) -> None:
        super().__init__()
        self.attention_norm = normalization(config, config.hidden_size, tensor_axis)
        self.attention = Attention(config, encoding, tensor_axis)
        self.mlp_norm = normalization(config, config.hidden_size, tensor_axis)
        self.mlp = MLP(config.hidden_size, config.mlp_size, tensor_axis)
        self.position = encoding.update(tensor_axis)
        self.moves = self.position is not None
        self.chunk_tokens: int | None = None
        self.add: Callable[[Tensor, Tensor], Tensor] = torch.add
        self.sequence_axis = SINGLE

    def forward(self, streams: Streams, document_starts: Tensor | None = None) -> Streams:
        """document_starts: [B, N], the first token that each token may attend to, or None."""
        x, state = streams
        attended, attended_state = self.attention(self.attention_norm(x), state, document_starts, self.moves)
        initial, delta = (local_tokens(state.initial, self.sequence_axis), state.delta) if self.moves else (None, None)
        args = x, attended, initial, delta, attended_state
        x, delta = self.update(*args) if self.chunk_tokens is None else in_chunks(self.update, self.chunk_tokens, *args)
        return Streams(x, state._replace(delta=delta) if self.moves else state)

    def update(
        self, x: Tensor, attended: Tensor, initial: Tensor | None, delta: Tensor | None, attended_state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Both streams after attention; each token's depends on its own arguments alone."""
        x, m = self.feed_forward(x, attended)
        if self.position is not None and self.moves:
            delta = self.position(PositionState(initial, delta), attended_state, m).delta
        return x, delta

    def feed_forward(self, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor | None]:
        """x after attention and MLP, and the output m of the MLP if the position update reads it."""
        x = x + attended
        m = self.mlp(self.mlp_norm(x))
        return self.add(x, m), m if self.moves else None

"""Attention of a block over the content and the position state, computed by one rank. Shapes as in model/transformer.py."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from megatape.attention.backend import DocumentStarts
from megatape.attention.bias import ScoreBias
from megatape.attention.rotation import PositionState
from megatape.config import ModelConfig
from megatape.encodings.encoding import Encoding, Features
from megatape.encodings.log_scale import LogScale
from megatape.model.attention_functions import dense_attention, training_attention
from megatape.model.layers import LayerFactory
from megatape.model.options import ModelOptions
from megatape.nn.linear import project
from megatape.nn.norm import normalization


class Attention(nn.Module):
    """Grouped-query attention, W_o (A v), with a position encoding.

    The encoding may rotate queries and keys, add a bias to the scores, or have its state averaged with the same weights as the
    values, A e. For layouts of several ranks see wrappers/.

    Attributes:
        attend: Function computing attention in evaluation.
        attend_in_training: Function computing attention in training.
        averages_state: Whether the position update reads A e.
        window: Number of tokens that a token attends to, or None for all tokens before it.
    """

    def __init__(
        self,
        config: ModelConfig,
        encoding: Encoding,
        options: ModelOptions,
        layers: LayerFactory,
        averages_state: bool,
        window: int | None = None,
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
        self.attend = dense_attention(options)
        self.attend_in_training = training_attention(config, options)
        self.averages_state = averages_state
        self.window = window
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
        """Split projections into heads, [B, N, heads x R] -> [B, N, heads, R], and normalize queries and keys."""
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
            # The other encodings of model.layers rotate by the state as it started.
            rotation = PositionState(state.initial, self.delta_for_attention(state))
        attend = self.attend_in_training if self.training else self.attend
        return attend(
            q,
            k,
            v,
            state=rotation,
            bias=bias,
            document_starts=document_starts,
            averages_state=self.averages_state,
            window=self.window,
        )

    def delta_for_attention(self, state: PositionState) -> Tensor | None:
        """Return the sum of the state's updates, or None if this layer does not read it. Ranks exchange it before attention."""
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
            q = self.log_scale(q, self._num_visible_keys(q, document_starts))
        if self.bias is None:
            return q, k, None
        weights = self.bias(q, k, features)
        return q, k, self.bias.scores(weights, state, past=0)

    def _num_visible_keys(self, q: Tensor, document_starts: DocumentStarts) -> Tensor:
        """Return how many keys each query [B, N, H/T, R] sees, [1, N], or [B, N] with documents."""
        num_keys = torch.arange(1, q.shape[1] + 1, device=q.device)[None]
        if document_starts is not None:
            num_keys = num_keys - document_starts
        if self.window is not None:
            num_keys = num_keys.clamp(max=self.window)
        return num_keys

    @contextmanager
    def averaging_state(self) -> Iterator[None]:
        """Return A e inside the `with` block if the encoding moves its state, even if no later block reads it."""
        before = self.averages_state
        self.averages_state = self.encoding.moves_state
        try:
            yield
        finally:
            self.averages_state = before

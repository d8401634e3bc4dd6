"""Attention of a layer, with its cache and position encoding. modeling_tape.py explains shapes and state."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward

from megatape.attention.rotation import PositionState, rotate_qk
from megatape.distributed.mesh import SINGLE
from megatape.encodings.encoding import Encoding, Features, LayerBias, positioned_layers
from megatape.encodings.log_scale import LogScale

from .attention import biased_mask, wide_attention
from .cache import carry_of, extend, first_key_of, has_unused_keys, replace_keys
from .configuration_tape import TapeConfig
from .layers import TapeRMSNorm
from .new_tokens import NewTokens
from .windows import Window, window_attention


class TapeAttention(nn.Module):
    """Grouped-query attention. The encoding can rotate queries and keys, add a bias, and move its state with the values."""

    def __init__(self, config: TapeConfig, encoding: Encoding, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.encoding = encoding
        self.layer_idx = layer_idx
        self.window = config.layer_kinds[layer_idx].window
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = encoding.qk_width**-0.5
        self.is_causal = True
        # The last layer with the model's encoding does not move the state, because no later layer reads it.
        self.averages_state = encoding.moves_state and layer_idx < positioned_layers(config)[-1]

        query_size = config.num_attention_heads * config.head_dim
        key_size = config.num_key_value_heads * config.head_dim
        has_qkv_bias = config.attention_bias != "none"
        has_output_bias = config.attention_bias == "qkvo"
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=has_qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, key_size, bias=has_qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, key_size, bias=has_qkv_bias)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=has_output_bias)

        self.q_norm: TapeRMSNorm | None = None
        self.k_norm: TapeRMSNorm | None = None
        if config.qk_norm:
            self.q_norm = TapeRMSNorm(config.head_dim, config.rms_norm_eps)
            self.k_norm = TapeRMSNorm(config.head_dim, config.rms_norm_eps)
        self.token_features = encoding.token_features(SINGLE)
        self.sequence_features = encoding.sequence_features(SINGLE)
        self.bias = encoding.bias(SINGLE)
        self.log_scale: LogScale | None = None
        if config.attention_scale == "log_n":
            self.log_scale = LogScale(config, SINGLE)

    def forward(
        self, h: Tensor, e: Tensor | None, new: NewTokens, past_key_values: Cache | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Attend from the new tokens to themselves and to the tokens in the cache.

        Args:
            h: Normalized hidden states, [B, N, D].
            e: State of the encoding (Encoding.state), None if it has none.
            new: Properties of the new tokens.
            past_key_values: Cache. The new tokens are added to it.

        Returns:
            Output, [B, N, D]; attention weights, or None if the attention function does not return them; state averaged with
            the weights of each query head, [B, N, H, W], or None if attention does not move the state.
        """
        q = self.q_proj(h).unflatten(-1, (-1, self.head_dim))
        k = self.k_proj(h).unflatten(-1, (-1, self.head_dim))
        v = self.v_proj(h).unflatten(-1, (-1, self.head_dim))
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q)
            k = self.k_norm(k)

        features, carry = self._features(h, q, k, new, past_key_values)
        q, k = self.encoding.rotate_qk(q, k, e, features)
        if self.log_scale is not None and new.num_keys is not None:
            num_keys = new.num_keys
            if self.window is not None:
                num_keys = num_keys.clamp(max=self.window)
            q = self.log_scale(q, num_keys)
        if self.encoding.has_position_tensor:
            q, k = rotate_qk(q, k, PositionState(e))
        if self.averages_state:
            state = PositionState(e).tensor(v.shape[2])
            v = torch.cat([v, state.to(v.dtype)], dim=-1)

        # Move heads before tokens: [B, H or L, N or K, .].
        q = q.transpose(1, 2)
        k = k.transpose(1, 2)
        v = v.transpose(1, 2)
        window = None
        if self.window is not None:
            window = Window(self.window, new.rows, first_key_of(past_key_values, self.layer_idx))
        if past_key_values is not None:
            if self.bias is not None and self.bias.rewrites_keys:
                # Cache keys in float32: each token rewrites them, and lower precision would round them each time.
                k = k.float()
            k, v = past_key_values.update(k, v, self.layer_idx)
        features = self._cached_features(features, carry, past_key_values)
        output, weights = self._attend(q, k, v, e, features, new, past_key_values, window)
        moved_state = None
        if self.averages_state:
            moved_state = output[..., self.head_dim :]
            output = output[..., : self.head_dim]
        return self.o_proj(output.flatten(2)), weights, moved_state

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        e: Tensor | None,
        features: Features,
        new: NewTokens,
        past_key_values: Cache | None,
        window: Window | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention with the configured function.

        Args:
            q: Queries of the new tokens, [B, H, N, R].
            k: Keys, [B, L, K, R].
            v: Values, [B, L, K, .].
            e: State of the encoding.
            features: Features for the bias.
            new: Properties of the new tokens.
            past_key_values: Cache.
            window: Window of this layer, None to attend to all earlier tokens.

        Returns:
            Outputs [B, N, H, .], and weights or None.
        """
        name = self.config._attn_implementation
        mask = new.mask
        spans = new.spans
        if self.bias is not None:
            if window is not None:
                mask = window.mask(k.shape[2], mask)
            mask = self._biased_mask(self.bias, q, k, e, features, new._replace(mask=mask), past_key_values)
        elif window is not None:
            if spans is not None:
                # The queries are the first tokens of the text. In a static cache, unused keys follow theirs.
                k = k[:, :, : q.shape[2]]
                v = v[:, :, : q.shape[2]]
            if name == "sdpa" and q.shape[2] > 1 and (spans is not None or not has_unused_keys(past_key_values)):
                return window_attention(self, q, k, v, mask, self.scaling, window, spans), None
            mask = window.mask(k.shape[2], mask)
        k = k.to(q.dtype)
        if name == "sdpa":
            return wide_attention(self, q, k, v, mask, self.scaling, spans)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention_forward)
        output, weights = attend(self, q, k, v, mask, scaling=self.scaling)
        return output, weights

    def _features(
        self, h: Tensor, q: Tensor, k: Tensor, new: NewTokens, past_key_values: Cache | None
    ) -> tuple[Features, Features]:
        """Compute the features of the new tokens, and the carry for the tokens after them.

        Returns:
            Features, each [B, N, heads, .], and carry. Both are empty if the encoding does not depend on the content.
        """
        if self.token_features is None:
            return (), ()
        features = self.token_features(h, q, k)
        if new.padding is not None:
            is_padding = new.padding[:, :, None, None]
            features = tuple(feature.masked_fill(is_padding, 0) for feature in features)
        if self.sequence_features is None:
            return features, ()
        return self.sequence_features(features, new.document_starts, carry_of(past_key_values, self.layer_idx))

    def _cached_features(self, features: Features, carry: Features, past_key_values: Cache | None) -> Features:
        """Add features and carry of the new tokens to the cache.

        Returns:
            Transient features of the new tokens, which are not cached, followed by the cached features of all tokens.
        """
        num_transient = len(features)
        if self.bias is not None:
            num_transient = self.bias.num_transient
        transient = features[:num_transient]
        cached = features[num_transient:]
        if cached or carry:
            cached = extend(past_key_values, self.layer_idx, cached, carry)
        return (*transient, *cached)

    def _biased_mask(
        self,
        layer: LayerBias,
        q: Tensor,
        k: Tensor,
        e: Tensor | None,
        features: Features,
        new: NewTokens,
        past_key_values: Cache | None,
    ) -> Tensor:
        """Compute the bias of the scores, combined with the mask.

        Args:
            layer: Bias of this layer.
            q: Queries of the new tokens, [B, H, N, R].
            k: Keys, [B, L, K, R]. In a static cache, unused keys follow.
            e: State of the encoding.
            features: Features for `layer`.
            new: Properties of the new tokens.
            past_key_values: Cache.

        Returns:
            Tensor to add to the scores, [B, H, N, K].
        """
        batch, _, num_new, _ = q.shape
        capacity = k.shape[2]
        # A window keeps fewer tokens in the cache.
        past = min(new.past, capacity - num_new)
        num_keys = past + num_new
        weights = layer(q.transpose(1, 2), k[:, :, :num_keys].transpose(1, 2), features)
        if past_key_values is not None and layer.rewrites_keys:
            later_keys = layer.later_keys(weights)[:, :, :num_keys]
            replace_keys(past_key_values, self.layer_idx, later_keys)
        scores = layer.scores(weights, e, past)
        bias = scores.block(scores.weights, slice(past, num_keys), slice(0, num_keys))
        if num_keys < capacity:
            bias = F.pad(bias, (0, capacity - num_keys))
        return biased_mask(bias, new.mask, past, q.dtype).expand(batch, -1, -1, -1)

"""MegaTAPE language models for transformers: a decoder-only transformer with any position encoding.

encodings.py names the class of the encoding, encoding.py is the interface between encoding and model. An exported folder only
needs torch and transformers: it contains the encoding's file from training, and stand_ins.py replaces what that file imports.

Shapes: B batch, N new tokens, P cached tokens, K = P + N keys, D hidden size, H query heads, L key/value heads, R head size, W
width of a state channel. Besides the hidden states x [B, N, D], layers pass on the state e of the encoding. For TAPE, it is a
position tensor [B, N, L, W] that each layer updates.

The cache contains rotated keys, and [v | e] as values. Any transformers cache works if its values may be wider than its keys.
The dynamic cache reserves capacity (cache.py).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from megatape.attention.rotation import PositionState, rotate_qk
from megatape.distributed.mesh import SINGLE
from megatape.encodings.encoding import Encoding, Features, LayerBias, positioned_layers
from megatape.encodings.log_scale import LogScale

from .attention import Spans, biased_mask, wide_attention
from .cache import carry_of, extend, replace_keys, reserve_capacity
from .configuration_tape import TapeConfig
from .encodings import ENCODINGS
from .new_tokens import NewTokens, describe_tokens
from .positions import draw_positions


class TapeRMSNorm(nn.Module):
    """RMSNorm: x / sqrt(mean(x^2) + eps) * weight, computed in float32 and returned in the dtype of x."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        normalized = F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps)
        return normalized.to(x.dtype)


class TapeMLP(nn.Module):
    """SwiGLU feed-forward network."""

    def __init__(self, config: TapeConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        gate = F.silu(self.gate_proj(h))
        return self.down_proj(gate.mul_(self.up_proj(h)))


class TapeAttention(nn.Module):
    """Grouped-query attention. The encoding can rotate queries and keys, add a bias, and move its state with the values."""

    def __init__(self, config: TapeConfig, encoding: Encoding, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.encoding = encoding
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = encoding.qk_width**-0.5
        self.is_causal = True
        # The last layer with positions does not move the state, because no later layer reads it.
        self.moves_state = encoding.moves_state and layer_idx < positioned_layers(config)[-1]

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
            q = self.log_scale(q, new.num_keys)
        if self.encoding.has_position_tensor:
            q, k = rotate_qk(q, k, PositionState(e))
        if self.moves_state:
            state = PositionState(e).tensor(v.shape[2])
            v = torch.cat([v, state.to(v.dtype)], dim=-1)

        # Move heads before tokens: [B, H or L, N or K, .].
        q = q.transpose(1, 2)
        k = k.transpose(1, 2)
        v = v.transpose(1, 2)
        if past_key_values is not None:
            if self.bias is not None and self.bias.rewrites_keys:
                # Cache keys in float32: each token rewrites them, and lower precision would round them each time.
                k = k.float()
            k, v = past_key_values.update(k, v, self.layer_idx)
        features = self._cached_features(features, carry, past_key_values)
        mask = new.mask
        if self.bias is not None:
            mask = self._biased_mask(self.bias, q, k, e, features, new, past_key_values)

        output, weights = self._attend(q, k.to(q.dtype), v, mask, new.spans)
        moved_state = None
        if self.moves_state:
            moved_state = output[..., self.head_dim :]
            output = output[..., : self.head_dim]
        return self.o_proj(output.flatten(2)), weights, moved_state

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, spans: Spans | None
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention with the configured function. Returns outputs [B, N, H, .], and weights or None."""
        name = self.config._attn_implementation
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
        num_keys = new.past + num_new
        capacity = k.shape[2]
        weights = layer(q.transpose(1, 2), k[:, :, :num_keys].transpose(1, 2), features)
        if past_key_values is not None and layer.rewrites_keys:
            later_keys = layer.later_keys(weights)[:, :, :num_keys]
            replace_keys(past_key_values, self.layer_idx, later_keys)
        scores = layer.scores(weights, e, new.past)
        bias = scores.block(scores.weights, slice(new.past, num_keys), slice(0, num_keys))
        if num_keys < capacity:
            bias = F.pad(bias, (0, capacity - num_keys))
        return biased_mask(bias, new.mask, new.past, q.dtype).expand(batch, -1, -1, -1)


class TapeDecoderLayer(GradientCheckpointingLayer):
    """Pre-norm layer of attention and MLP. It updates the hidden states x, and the state e if the encoding moves it."""

    def __init__(self, config: TapeConfig, encoding: Encoding, layer_idx: int) -> None:
        super().__init__()
        positioned = positioned_layers(config)
        if layer_idx not in positioned:
            encoding = Encoding(config)  # This layer has no positions.
        self.input_layernorm = TapeRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = TapeAttention(config, encoding, layer_idx)
        self.post_attention_layernorm = TapeRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = TapeMLP(config)
        self.position = encoding.update(SINGLE)
        self.is_last = layer_idx == positioned[-1]
        self.num_channels = config.num_key_value_heads

    def forward(
        self, x: Tensor, e: Tensor | None, new: NewTokens, past_key_values: Cache | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the hidden states and the state after this layer. The last layer with positions does not update the state.

        Args:
            x: Hidden states, [B, N, D].
            e: State of the encoding (Encoding.state), None if it has none.
            new: Properties of the new tokens.
            past_key_values: Cache.
        """
        attended, _, moved_state = self.self_attn(self.input_layernorm(x), e, new, past_key_values)
        x = x + attended
        m = self.mlp(self.post_attention_layernorm(x))
        if self.position is not None and not self.is_last:
            e = self.position(PositionState(e), moved_state, m).tensor(self.num_channels)
        return x + m, e


class TapePreTrainedModel(PreTrainedModel):
    """Settings for transformers. Flash and flex attention are not supported, because they need values as wide as keys."""

    config: TapeConfig
    config_class = TapeConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["TapeDecoderLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _can_record_outputs = {"hidden_states": TapeDecoderLayer, "attentions": TapeAttention}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        for name, initial in getattr(module, "initial_values", {}).items():
            weight = getattr(module, name)
            if initial is None:
                init.normal_(weight, mean=0.0, std=self.config.initializer_range)
            elif isinstance(initial, int | float):
                init.constant_(weight, initial)
            else:
                init.uniform_(weight, initial.middle - initial.bound, initial.middle + initial.bound)


class TapeModel(TapePreTrainedModel):
    """Embedding, decoder layers and final norm."""

    def __init__(self, config: TapeConfig) -> None:
        super().__init__(config)
        self.encoding: Encoding = ENCODINGS[config.encoding].load()(config)
        # Leave out padding_idx, which would only drop the gradient of the padding token's embedding.
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embedding = self.encoding.embedding(SINGLE)
        self.state_start = self.encoding.start(SINGLE)
        self.layers = nn.ModuleList(TapeDecoderLayer(config, self.encoding, index) for index in range(config.num_hidden_layers))
        self.has_bias = any(isinstance(module, LayerBias) for module in self.layers.modules())
        self.norm = TapeRMSNorm(config.hidden_size, config.rms_norm_eps)
        # Store initial values in the modules, because transformers may replace a parameter before initializing it.
        for module in self.modules():
            module.initial_values = {}
            for name, weight in module.named_parameters(recurse=False):
                if hasattr(weight, "spec"):
                    module.initial_values[name] = weight.spec.init
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        position_length: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Compute the hidden states of tokens.

        Args:
            input_ids: Token ids, [B, N].
            attention_mask: [B, P + N], 0 on padding.
            position_ids: [B, N] or [1, N], by default counted from the first token in each row that is not padding.
            past_key_values: Cache.
            inputs_embeds: Embedded tokens instead of ids, [B, N, D].
            use_cache: Whether to return a cache.
            position_length: Final length of each text in tokens, [B] or [1], for encodings that need it.
            **kwargs: Options of transformers' decorators, such as output_hidden_states.

        Returns:
            Hidden states [B, N, D] after the final norm, and the cache.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        x = inputs_embeds
        if x is None:
            x = self.embed_tokens(input_ids)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        reserve_capacity(past_key_values)

        new, position_ids = describe_tokens(self.config, x, attention_mask, position_ids, past_key_values, self.has_bias)
        num_drawn = self.encoding.positions(random_offset=False).drawn_from
        if num_drawn:
            position_ids = draw_positions(self.config, num_drawn, position_ids, position_length)
        if self.position_embedding is not None:
            x = self.position_embedding(x, position_ids)
        e, carry = self._initial_state(x, position_ids, new, past_key_values)

        for layer in self.layers:
            x, e = layer(x, e, new, past_key_values=past_key_values)
        if carry:
            extend(past_key_values, 0, (), carry)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x), past_key_values=past_key_values)

    def _initial_state(
        self, x: Tensor, position_ids: Tensor, new: NewTokens, past_key_values: Cache | None
    ) -> tuple[Tensor | None, Features]:
        """Return the state of the encoding before the first layer, and the carry for the tokens after the new ones."""
        e = self.encoding.state(position_ids)
        if e is not None:
            # All rows may share one row of positions.
            e = e.expand(x.shape[0], *e.shape[1:])
        if self.state_start is None:
            return e, ()
        content = x
        if new.padding is not None:
            content = x.masked_fill(new.padding[..., None], 0)
        delta, carry = self.state_start(content, new.document_starts, carry_of(past_key_values, 0))
        return PositionState(e, delta).tensor(self.config.num_key_value_heads), carry


class TapeForCausalLM(TapePreTrainedModel, GenerationMixin):
    """Model with a language modeling head."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: TapeConfig) -> None:
        super().__init__(config)
        self.model = TapeModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Compute logits, and the loss if labels are given.

        Args:
            input_ids: See TapeModel.forward.
            attention_mask: See TapeModel.forward.
            position_ids: See TapeModel.forward.
            past_key_values: See TapeModel.forward.
            inputs_embeds: See TapeModel.forward.
            labels: input_ids [B, N], with -100 for tokens without a loss. They are shifted here.
            use_cache: See TapeModel.forward.
            logits_to_keep: Number of last tokens to compute logits for, 0 for all, or the indices of these tokens.
            **kwargs: Further arguments for TapeModel.forward and the loss function.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        tokens_with_logits = logits_to_keep
        if isinstance(logits_to_keep, int):
            tokens_with_logits = slice(-logits_to_keep, None)
        logits = self.lm_head(outputs.last_hidden_state[:, tokens_with_logits])
        cap = self.config.logit_softcap
        if cap is not None:
            logits = cap * torch.tanh(logits / cap)

        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _get_static_cache_init_shape(self) -> None:
        """Return None, so that the static cache takes its shape from the first tokens: keys and values differ in width."""

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> Any:
        """Make the cache, and pass the final length of the texts to an encoding that draws positions.

        If the cache comes from an earlier call, the length is unknown.
        """
        cache = model_kwargs.get("past_key_values")
        draws_positions = self.model.encoding.positions(random_offset=False).drawn_from > 0
        if draws_positions and (cache is None or cache.get_seq_length() == 0):
            mask = model_kwargs.get("attention_mask")
            num_padding = torch.zeros(1, dtype=torch.long)
            if mask is not None:
                num_padding = (mask == 0).sum(-1)
            # The last token is not added to the cache.
            model_kwargs["position_length"] = max_cache_length + 1 - num_padding
        return super()._prepare_cache_for_generation(
            generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
        )

    def _get_candidate_generator(self, *args: Any, model_kwargs: dict[str, Any], **kwargs: Any) -> Any:
        """Make the generator of an assistant model, which does not take `position_length`."""
        assistant_kwargs = {name: value for name, value in model_kwargs.items() if name != "position_length"}
        return super()._get_candidate_generator(*args, model_kwargs=assistant_kwargs, **kwargs)

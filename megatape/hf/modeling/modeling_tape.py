"""MegaTAPE language models for transformers: a decoder-only transformer that knows no position encoding by name.

encodings.py has the class of the one that the configuration names, encoding.py what the model asks of it. An exported folder
needs nothing but torch and transformers: it has training's file of the encoding, and stand_ins.py for what that imports.

B batch, N new tokens, P cached ones, K = P + N keys, C hidden size, H query heads, L key/value heads, R head size, W numbers of
one channel of the state. Beside the hidden states x [B, N, D] the layers carry the encoding's state e: with TAPE a position
tensor [B, N, L, W] for every token, which each layer moves.

Rotated keys and [v | e] as values are all that a later token needs, so any cache of transformers that lets values be wider than
keys holds TAPE; the dynamic one reserves capacity (cache.py).
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.masking_utils import create_causal_mask
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

from .attention import Spans, biased_mask, find_spans, wide_attention
from .cache import carry_of, extend, replace_keys, reserve_capacity
from .configuration_tape import TapeConfig
from .encodings import ENCODINGS
from .positions import draw_positions


class TapeRMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight in float32, returned in the dtype of x."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)


class TapeMLP(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, config: TapeConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(h)).mul_(self.up_proj(h)))


class NewTokens(NamedTuple):
    """Properties of the new tokens that attention needs.

    mask: as transformers makes it; None if nothing but later tokens is hidden, or if there are spans. past: number of tokens
    before them in the cache, if the encoding has a bias. spans: as attention.py has them. padding: [B, N], true where they are
    padding. document_starts: [B, N], the first token of each one's document, None if all are one text. num_keys: [B or 1, N],
    how many keys each sees, if attention scales by it.
    """

    mask: Tensor | None
    past: int
    spans: Spans | None
    padding: Tensor | None
    document_starts: Tensor | None
    num_keys: Tensor | None


class TapeAttention(nn.Module):
    """Grouped-query attention with queries, keys and scores as the encoding wants them.

    Its weights may move e with the values.
    """

    def __init__(self, config: TapeConfig, encoding: Encoding, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.encoding = encoding
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = encoding.qk_width**-0.5
        self.is_causal = True
        # Nothing reads the state after the last layer that has positions.
        self.moves = encoding.moves_state and layer_idx < positioned_layers(config)[-1]
        inputs = config.attention_bias != "none"
        outputs = config.attention_bias == "qkvo"
        self.q_proj = nn.Linear(config.hidden_size, config.num_attention_heads * config.head_dim, bias=inputs)
        self.k_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * config.head_dim, bias=inputs)
        self.v_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * config.head_dim, bias=inputs)
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, config.hidden_size, bias=outputs)
        self.q_norm = TapeRMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = TapeRMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.token_features = encoding.token_features(SINGLE)
        self.sequence_features = encoding.sequence_features(SINGLE)
        self.bias = encoding.bias(SINGLE)
        self.log_scale = LogScale(config, SINGLE) if config.attention_scale == "log_n" else None

    def forward(
        self, h: Tensor, e: Tensor | None, new: NewTokens, past_key_values: Cache | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Attend from the new tokens to them and to those in the cache.

        h [B, N, D], e as Encoding.state has it. Returns the output [B, N, D], the weights if the backend has them, and A e of
        every query head [B, N, H, W] if attention moves the state.
        """
        q, k, v = (linear(h).unflatten(-1, (-1, self.head_dim)) for linear in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q)
            k = self.k_norm(k)
        features, carry = self._features(h, q, k, new, past_key_values)
        q, k = self.encoding.rotate_qk(q, k, e, features)
        if self.log_scale is not None and new.num_keys is not None:
            q = self.log_scale(q, new.num_keys)
        if self.encoding.has_position_tensor:
            q, k = rotate_qk(q, k, PositionState(e))
        if self.moves:
            v = torch.cat([v, PositionState(e).tensor(v.shape[2]).to(v.dtype)], dim=-1)
        q, k, value = (part.transpose(1, 2) for part in (q, k, v))
        if past_key_values is not None:
            held = k.float() if self.bias is not None and self.bias.rewrites_keys else k
            k, value = past_key_values.update(held, value, self.layer_idx)
        transient = len(features) if self.bias is None else self.bias.num_transient
        kept = features[transient:]
        if kept or carry:
            kept = extend(past_key_values, self.layer_idx, kept, carry)
        mask = new.mask
        if self.bias is not None:
            mask = self._biased_mask(self.bias, q, k, e, (*features[:transient], *kept), new, past_key_values)
        k = k.to(q.dtype)
        if self.config._attn_implementation == "sdpa":
            out, weights = wide_attention(self, q, k, value, mask, self.scaling, new.spans)
        else:
            attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
            out, weights = attend(self, q, k, value, mask, scaling=self.scaling)
        content, attended_positions = (out[..., : self.head_dim], out[..., self.head_dim :]) if self.moves else (out, None)
        return self.o_proj(content.flatten(2)), weights, attended_positions

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
        """Bias and mask in one, to be added to the scores, [B, H, N, K].

        q [B, H, N, R] of the new tokens; k [B, L, K, R], in a static cache with room for more; features: as layer takes them.
        """
        total = new.past + q.shape[2]
        held = k.shape[2]
        weights = layer(q.transpose(1, 2), k[:, :, :total].transpose(1, 2), features)
        scores = layer.scores(weights, e, new.past)
        if past_key_values is not None and layer.rewrites_keys:
            replace_keys(past_key_values, self.layer_idx, layer.later_keys(weights)[:, :, :total])
        bias = scores.block(scores.weights, slice(new.past, total), slice(0, total))
        if total < held:
            bias = F.pad(bias, (0, held - total))
        return biased_mask(bias, new.mask, new.past, q.dtype).expand(q.shape[0], -1, -1, -1)

    def _features(
        self, h: Tensor, q: Tensor, k: Tensor, new: NewTokens, past_key_values: Cache | None
    ) -> tuple[Features, Features]:
        """Features of the new tokens, and what the tokens after them need; both empty without content in the encoding."""
        if self.token_features is None:
            return (), ()
        features = self.token_features(h, q, k)
        if new.padding is not None:
            features = tuple(feature.masked_fill(new.padding[:, :, None, None], 0) for feature in features)
        if self.sequence_features is None:
            return features, ()
        return self.sequence_features(features, new.document_starts, carry_of(past_key_values, self.layer_idx))


class TapeDecoderLayer(GradientCheckpointingLayer):
    """Pre-norm attention and MLP, each of which may move both the hidden states x and the state e."""

    def __init__(self, config: TapeConfig, encoding: Encoding, layer_idx: int) -> None:
        super().__init__()
        positioned = positioned_layers(config)
        encoding = encoding if layer_idx in positioned else Encoding(config)
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
        """x [B, N, D], e as Encoding.state has it; returns both after this layer (the last layer leaves e alone)."""
        attended, _, attended_positions = self.self_attn(self.input_layernorm(x), e, new, past_key_values)
        x = x + attended
        m = self.mlp(self.post_attention_layernorm(x))
        if self.position is not None and not self.is_last:
            e = self.position(PositionState(e), attended_positions, m).tensor(self.num_channels)
        return x + m, e


class TapePreTrainedModel(PreTrainedModel):
    """Settings of transformers. Flash and flex attention are off: they need values as wide as keys."""

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
        for name, first in getattr(module, "first_values", {}).items():
            weight = getattr(module, name)
            if first is None:
                init.normal_(weight, mean=0.0, std=self.config.initializer_range)
            elif isinstance(first, int | float):
                init.constant_(weight, first)
            else:
                init.uniform_(weight, first.middle - first.bound, first.middle + first.bound)


class TapeModel(TapePreTrainedModel):
    """Embedding, decoder layers and final norm."""

    def __init__(self, config: TapeConfig) -> None:
        super().__init__(config)
        self.encoding: Encoding = ENCODINGS[config.encoding].load()(config)
        # No padding_idx: it would cut the gradient of the padding token's embedding and change nothing else.
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embedding, self.state_start = self.encoding.embedding(SINGLE), self.encoding.start(SINGLE)
        self.layers = nn.ModuleList(TapeDecoderLayer(config, self.encoding, index) for index in range(config.num_hidden_layers))
        self.has_bias = any(isinstance(module, LayerBias) for module in self.layers.modules())
        self.norm = TapeRMSNorm(config.hidden_size, config.rms_norm_eps)
        for module in self.modules():  # transformers may replace a parameter before it asks for its first values
            weights = module.named_parameters(recurse=False)
            module.first_values = {name: weight.settings.init for name, weight in weights if hasattr(weight, "settings")}
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
        """Compute the hidden states of input_ids [B, N] or inputs_embeds [B, N, D].

        attention_mask [B, P + N], 0 on padding; position_ids [B, N] or [1, N], by default counted from each row's first token
        that is not padding; position_length [B] or [1], the tokens that each text will have in the end, for encodings that
        must know.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        reserve_capacity(past_key_values)
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        places = self._positions(torch.arange(x.shape[1], device=x.device) + past, attention_mask)
        document_starts = None
        if position_ids is None:
            position_ids = places
        elif attention_mask is None and past_key_values is None:  # when transformers looks for documents, too
            document_starts = self._document_starts(position_ids.expand(x.shape[:2]))
        spans = self._spans(x, attention_mask, past)
        mask = None
        if spans is None:
            mask = create_causal_mask(
                config=self.config,
                inputs_embeds=x,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                position_ids=position_ids,
            )
        num_keys = None
        if self.config.attention_scale == "log_n":  # documents are in the mask alone, and padding may see nothing
            seen = None if mask is None else mask if mask.dtype == torch.bool else mask == 0
            num_keys = places + 1 if seen is None else seen.sum(-1)[:, 0].clamp(min=1)
        padding = None
        if attention_mask is not None and attention_mask.dim() == 2:
            padding = attention_mask[:, -x.shape[1] :] == 0
        if drawn_from := self.encoding.positions(random_offset=False).drawn_from:
            position_ids = draw_positions(self.config, drawn_from, position_ids, position_length)
        if self.position_embedding is not None:
            x = self.position_embedding(x, position_ids)
        e = self.encoding.state(position_ids)
        if e is not None:
            e = e.expand(x.shape[0], *e.shape[1:])  # position_ids may be the same for all rows
        carry: Features = ()
        if self.state_start is not None:
            content = x if padding is None else x.masked_fill(padding[..., None], 0)
            delta, carry = self.state_start(content, document_starts, carry_of(past_key_values, 0))
            e = PositionState(e, delta).tensor(self.config.num_key_value_heads)
        new = NewTokens(mask, int(past) if self.has_bias else 0, spans, padding, document_starts, num_keys)
        for layer in self.layers:
            x, e = layer(x, e, new, past_key_values=past_key_values)
        if carry:
            extend(past_key_values, 0, (), carry)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x), past_key_values=past_key_values)

    def _spans(self, x: Tensor, attention_mask: Tensor | None, past: int) -> Spans | None:
        """Instead of a mask of all pairs of tokens: where each row's tokens lie between padding, if that says it all."""
        if self.config._attn_implementation != "sdpa" or self.has_bias:
            return None
        one_token = x.shape[1] == 1  # its attention reads the whole cache, and so needs a mask
        if torch.compiler.is_compiling() or past or one_token or attention_mask is None or attention_mask.shape != x.shape[:2]:
            return None
        return find_spans(attention_mask)

    @staticmethod
    def _document_starts(position_ids: Tensor) -> Tensor:
        """Index of the first token of each one's document, [B, N]: where positions do not count on, one begins."""
        begins = F.pad(position_ids.diff(dim=1) != 1, (1, 0))
        return (torch.arange(position_ids.shape[1], device=position_ids.device) * begins).cummax(1).values

    @staticmethod
    def _positions(index: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Position of every new token, [B, N] or [1, N]; the same with a cache and without."""
        if attention_mask is not None and attention_mask.dim() == 2:
            return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -len(index) :]
        return index[None]


class TapeForCausalLM(TapePreTrainedModel, GenerationMixin):
    """The model with a language modelling head."""

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
        """As TapeModel.forward. labels [B, N] are input_ids with -100 where no loss is wanted; they are shifted here.

        logits_to_keep: number of last tokens, or their indices, whose logits are computed; 0 is all.
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
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        if (cap := self.config.logit_softcap) is not None:
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
        """None: keys and values differ in width, so the first tokens make the cache, in pieces of a prompt, too."""

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> Any:
        """Tell an encoding that draws positions how long texts may get.

        Not if an earlier call made the cache: its limit is not known.
        """
        cache = model_kwargs.get("past_key_values")
        draws = self.model.encoding.positions(random_offset=False).drawn_from
        if draws and (cache is None or cache.get_seq_length() == 0):
            mask = model_kwargs.get("attention_mask")
            padding = torch.zeros(1, dtype=torch.long) if mask is None else (mask == 0).sum(-1)
            model_kwargs["position_length"] = max_cache_length + 1 - padding  # the last token needs no cache
        return super()._prepare_cache_for_generation(
            generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
        )

    def _get_candidate_generator(self, *args: Any, model_kwargs: dict[str, Any], **kwargs: Any) -> Any:
        """An assistant does not know the argument `position_length`."""
        known = {name: value for name, value in model_kwargs.items() if name != "position_length"}
        return super()._get_candidate_generator(*args, model_kwargs=known, **kwargs)

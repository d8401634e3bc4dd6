"""TAPE language models for transformers. Copied as it is into exported folders: imports only torch and transformers.

TAPE (arXiv 2501.00712) gives every token a position tensor e that each layer moves: by attention, with the weights that
move the values, and by a matrix over the channels that is made from the output of the MLP.

Shapes: B batch, N new tokens, P cached tokens, C hidden, H query heads, L position channels (= key/value heads),
R head size, I inner size of the position update. e [B, N, L, R] holds R/2 cosines and R/2 sines in each channel.

Generation needs no cache of its own: rotated keys and [v | e] as values are all that a later token needs, so any cache
of transformers that lets values be wider than keys holds TAPE.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_tape import TapeConfig


def initial_state(position_ids: Tensor, num_channels: int, head_dim: int, base: float) -> Tensor:
    """Rotary embedding of position_ids [B, N] as e [B, N, L, R], float32 whatever the precision of the weights.

    The angles are computed in float64: in float32 they are wrong by 3e-4 at position 131072."""
    plane = torch.arange(0, head_dim, 2, dtype=torch.float64, device=position_ids.device)
    angles = position_ids.to(torch.float64)[..., None] * base ** (-plane / head_dim)
    state = torch.cat([angles.cos(), angles.sin()], dim=-1).to(torch.float32)
    return state[:, :, None].expand(-1, -1, num_channels, -1)


def rotate(x: Tensor, e: Tensor) -> Tensor:
    """Multiply the planes of heads x [B, N, H, R] by those of e [B, N, L, R], (x1 + i x2)(c + i s).

    Heads l H/L .. (l + 1) H/L - 1 share channel l. Returns [B, N, H, R] in the dtype of x."""
    x1, x2 = x.unflatten(2, (e.shape[2], -1)).chunk(2, dim=-1)
    c, s = e[:, :, :, None].chunk(2, dim=-1)
    return torch.cat([x1 * c - x2 * s, x2 * c + x1 * s], dim=-1).flatten(2, 3).to(x.dtype)


def eager_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """Attention in plain matrix products; values may be wider than keys. mask [B, 1, N, P + N] is added to the scores.

    Returns the outputs [B, N, H, value size] and the weights [B, H, N, P + N]."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.mT * scaling
    if mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2), weights


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
        return self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class TapeAttention(nn.Module):
    """Grouped-query attention whose queries and keys are rotated by e, and whose weights move e along with the values."""

    def __init__(self, config: TapeConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.head_dim**-0.5
        self.is_causal = True
        self.moves = layer_idx < config.num_hidden_layers - 1  # nothing reads the position tensor after the last layer
        self.q_proj = nn.Linear(config.hidden_size, config.num_attention_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, config.hidden_size, bias=False)

    def forward(
        self, h: Tensor, e: Tensor, mask: Tensor | None, past_key_values: Cache | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """h [B, N, C], e [B, N, L, R]. Returns the output [B, N, C], the weights if the backend has them, and A e of
        every query head [B, N, H, R] (None in the last layer)."""
        q, k, v = (linear(h).unflatten(-1, (-1, self.head_dim)) for linear in (self.q_proj, self.k_proj, self.v_proj))
        value = torch.cat([v, e.to(v.dtype)], dim=-1) if self.moves else v
        q, k, value = (part.transpose(1, 2) for part in (rotate(q, e), rotate(k, e), value))
        if past_key_values is not None:
            k, value = past_key_values.update(k, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        out, weights = attend(self, q, k, value, mask, scaling=self.scaling)
        content, moved = out.chunk(2, dim=-1) if self.moves else (out, None)
        return self.o_proj(content.flatten(2)), weights, moved


class TapePositionUpdate(nn.Module):
    """The two updates of e: e + g * (A e), then e + W_down diag(silu(W_x m)) W_up e over the channels of each token."""

    def __init__(self, config: TapeConfig) -> None:
        super().__init__()
        channels, inner = config.num_key_value_heads, config.position_size
        self.gain = nn.Parameter(torch.zeros(config.num_attention_heads))  # g
        self.content = nn.Parameter(torch.empty(inner, config.hidden_size))  # W_x
        self.up = nn.Parameter(torch.zeros(inner, channels))  # W_up
        self.down = nn.Parameter(torch.empty(channels, inner))  # W_down

    def forward(self, e: Tensor, moved: Tensor, m: Tensor) -> Tensor:
        """e [B, N, L, R], moved [B, N, H, R] (A e of every query head), m [B, N, C] (output of the MLP)."""
        channels = e.shape[2]
        gain = self.gain.to(e.dtype).view(channels, 1, -1)
        e = e + (gain @ moved.to(e.dtype).unflatten(2, (channels, -1))).squeeze(3)
        active = F.silu(F.linear(m, self.content))  # [B, N, I]
        outer = (self.down.T[:, :, None] * self.up[:, None, :]).flatten(1)  # [I, L * L]
        mixing = (active @ outer).unflatten(-1, (channels, channels))  # [B, N, L, L]
        return e + mixing.to(e.dtype) @ e


class TapeDecoderLayer(GradientCheckpointingLayer):
    """Pre-norm attention and MLP over the hidden states x and the position tensor e."""

    def __init__(self, config: TapeConfig, layer_idx: int) -> None:
        super().__init__()
        self.input_layernorm = TapeRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = TapeAttention(config, layer_idx)
        self.post_attention_layernorm = TapeRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = TapeMLP(config)
        self.position = TapePositionUpdate(config)

    def forward(
        self, x: Tensor, e: Tensor, mask: Tensor | None = None, past_key_values: Cache | None = None
    ) -> tuple[Tensor, Tensor]:
        """x [B, N, C], e [B, N, L, R]; returns both after this layer (the last layer leaves e alone)."""
        attended, _, moved = self.self_attn(self.input_layernorm(x), e, mask, past_key_values)
        x = x + attended
        m = self.mlp(self.post_attention_layernorm(x))
        if moved is not None:
            e = self.position(e, moved, m)
        return x + m, e


class TapePreTrainedModel(PreTrainedModel):
    """What transformers has to know of TAPE. Its flash and flex attention need values as wide as keys: not claimed."""

    config_class = TapeConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["TapeDecoderLayer"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _can_record_outputs = {"hidden_states": TapeDecoderLayer, "attentions": TapeAttention}  # noqa: RUF012

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, TapePositionUpdate):  # a new model starts from rotary positions
            init.zeros_(module.gain)
            init.zeros_(module.up)
            init.normal_(module.content, mean=0.0, std=self.config.initializer_range)
            init.normal_(module.down, mean=0.0, std=self.config.initializer_range)


class TapeModel(TapePreTrainedModel):
    """Embedding, decoder layers and final norm."""

    def __init__(self, config: TapeConfig) -> None:
        super().__init__(config)
        # No padding_idx: it would cut the gradient of the padding token's embedding and change nothing else.
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(TapeDecoderLayer(config, index) for index in range(config.num_hidden_layers))
        self.norm = TapeRMSNorm(config.hidden_size, config.rms_norm_eps)
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
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """input_ids [B, N] or inputs_embeds [B, N, C]; attention_mask [B, P + N], 0 on padding; position_ids [B, N] or
        [1, N], by default counted from each row's first token that is not padding."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if position_ids is None:
            position_ids = self._positions(x, attention_mask, past_key_values)
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=position_ids,
        )
        config = self.config
        e = initial_state(position_ids, config.num_key_value_heads, config.head_dim, config.rope_parameters["rope_theta"])
        e = e.expand(x.shape[0], -1, -1, -1)
        for layer in self.layers:
            x, e = layer(x, e, mask, past_key_values=past_key_values)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x), past_key_values=past_key_values)

    @staticmethod
    def _positions(x: Tensor, attention_mask: Tensor | None, past_key_values: Cache | None) -> Tensor:
        """Position of every new token, [B, N] or [1, N]; the same with a cache and without."""
        length = x.shape[1]
        if attention_mask is not None and attention_mask.dim() == 2:
            return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -length:]
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        return (torch.arange(length, device=x.device) + past)[None]


class TapeForCausalLM(TapePreTrainedModel, GenerationMixin):
    """TAPE with a language modelling head."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

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

        logits_to_keep: number of last tokens, or their indices, whose logits are computed; 0 is all."""
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

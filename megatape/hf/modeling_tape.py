"""MegaTAPE language models for transformers. Copied as it is into exported folders: imports only torch and transformers.

TAPE (arXiv 2501.00712) gives every token a position tensor e that each layer moves: by attention, with the weights that
move the values, and by a matrix over the channels that is made from the output of the MLP. The other position encodings
(config.encoding) are the same model with other answers to four questions: what is added to the embeddings (`embedding_term`), what
rotates queries and keys (`initial_state`), what is added to the scores (BIASES), and how a layer moves e (UPDATES).

Shapes: B batch, N new tokens, P cached tokens, K = P + N keys, C hidden, H query heads, L position channels (= key/value heads),
R head size, I inner size of the position update. e [B, N, L, W] holds R/2 cosines and R/2 sines in each channel (W = R), or
those of the two rows of every rotation apart (W = 2R).

Generation needs no cache of its own: rotated keys and [v | e] as values are all that a later token needs, so any cache
of transformers that lets values be wider than keys holds TAPE.
"""

import math
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

FULL_WIDTH = ("tape_vector", "tape_vector_no_rotation_equivariance", "tape_no_equivariance")  # W = 2R
SCALE_BASE = 2048  # of xPos


def frequencies(config: TapeConfig) -> tuple[Tensor, float]:
    """Radians per token of the R/2 planes, float64, and the modulus of the rotations, as config.rope_parameters say."""
    rope, size = config.rope_parameters, config.head_dim
    base, kind = rope["rope_theta"], rope["rope_type"]
    thetas = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    if kind == "default":
        return thetas, 1.0
    if kind == "linear":
        return thetas / rope["factor"], 1.0
    length = rope["original_max_position_embeddings"]
    # YaRN: planes that turn 32 times within the original length stay, those that turn less than once are interpolated.
    fast, slow = (size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1))
    first, last = max(math.floor(fast), 0), min(math.ceil(slow), size - 1)
    ramp = ((torch.arange(size // 2, dtype=torch.float64) - first) / ((last - first) or 1e-3)).clamp(0, 1)
    return thetas / rope["factor"] * ramp + thetas * (1 - ramp), 0.1 * math.log(rope["factor"]) + 1


def initial_state(config: TapeConfig, position_ids: Tensor) -> Tensor | None:
    """What rotates queries and keys at position_ids [B, N], float32 whatever the precision of the weights; None if nothing does.

    e [B, N, L, W], or for xPos the rotations of queries beside those of keys, [B, N, L, 2R]. The angles are computed in float64: in
    float32 they are wrong by 3e-4 at position 131072."""
    if config.encoding in ("sinusoidal", "nope", *BIASES):
        return None
    thetas, size = frequencies(config)
    angles = position_ids.to(torch.float64)[..., None] * thetas.to(position_ids.device)
    parts = [angles.cos() * size, angles.sin() * size]
    if config.encoding in FULL_WIDTH:
        parts = [part.repeat(1, 1, 2) for part in parts]
    if config.encoding == "xpos":
        fraction = torch.arange(0, config.head_dim, 2, dtype=torch.float64, device=position_ids.device) / config.head_dim
        power = (position_ids - config.max_position_embeddings // 2).to(torch.float64)[..., None] / SCALE_BASE
        scale = ((fraction + 0.4) / 1.4) ** power
        parts = [part * scale for part in parts] + [part / scale for part in parts]
    state = torch.cat(parts, dim=-1).to(torch.float32)
    return state[:, :, None].expand(-1, -1, config.num_key_value_heads, -1)


def embedding_term(position_ids: Tensor, hidden_size: int) -> Tensor:
    """Sinusoidal embeddings of position_ids [B, N], float32 [B, N, C]: sines in even columns, cosines in odd ones."""
    column = torch.arange(0, hidden_size, 2, dtype=torch.float64, device=position_ids.device)
    angles = position_ids.to(torch.float64)[..., None] * 10000.0 ** (-column / hidden_size)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).to(torch.float32)


def drawn_positions(config: TapeConfig, position_ids: Tensor) -> Tensor:
    """RandPE: the n-th token gets the n-th of position_length sorted random positions, always the same ones for a seed and length."""
    if config.position_length > 2 * config.max_position_embeddings:
        raise ValueError(
            f"config.position_length is {config.position_length}, but RandPE draws different positions of 0 .. "
            f"{2 * config.max_position_embeddings - 1} (2 max_position_embeddings): lower it"
        )
    if int(position_ids.max()) >= config.position_length:
        raise ValueError(
            f"token {int(position_ids.max()) + 1} of a text, but config.position_length is {config.position_length}: RandPE spreads "
            "that many tokens over its positions; set it to the length that prompt and continuation will have, before the first token"
        )
    drawn = torch.randperm(2 * config.max_position_embeddings, generator=torch.Generator().manual_seed(config.position_seed))
    return drawn[: config.position_length].sort().values.to(position_ids.device)[position_ids]


def rotate(x: Tensor, e: Tensor) -> Tensor:
    """Multiply the planes of heads x [B, N, H, R] by those of e [B, N, L, W], (x1 + i x2)(c + i s); with W = 2R each row of the
    product has its own c and s. Heads l H/L .. (l + 1) H/L - 1 share channel l. Returns [B, N, H, R] in the dtype of x."""
    x1, x2 = x.unflatten(2, (e.shape[2], -1)).chunk(2, dim=-1)
    e = e[:, :, :, None]
    if e.shape[-1] == 2 * x.shape[-1]:
        c1, c2, s1, s2 = e.chunk(4, dim=-1)
    else:
        (c1, s1), (c2, s2) = e.chunk(2, dim=-1), e.chunk(2, dim=-1)
    return torch.cat([x1 * c1 - x2 * s1, x2 * c2 + x1 * s2], dim=-1).flatten(2, 3).to(x.dtype)


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


class AlibiBias(nn.Module):
    """-slope times distance (arXiv 2108.12409)."""

    def __init__(self, config: TapeConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads

    def forward(self, distance: Tensor, position_ids: Tensor) -> Tensor:
        """distance [N, K] of each key before each query, position_ids [B, N] of the queries. Returns [B or 1, H, N, K]."""
        slopes = torch.tensor(self._slopes(self.num_heads), device=distance.device)
        return (-slopes[:, None, None] * distance)[None]

    def _slopes(self, heads: int) -> list[float]:
        power = 2 ** int(math.log2(heads))
        first = [2 ** (-8 * head / power) for head in range(1, power + 1)]
        return first if power == heads else first + self._slopes(2 * power)[::2][: heads - power]


class T5Bias(nn.Module):
    """A learned number for each head and bucket of distances (arXiv 1910.10683): 16 of one distance each, 16 of growing width."""

    def __init__(self, config: TapeConfig) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(config.num_attention_heads, 32))

    def forward(self, distance: Tensor, position_ids: Tensor) -> Tensor:
        """As AlibiBias.forward."""
        share = torch.log(distance.clamp(min=16).to(torch.float64) / 16) / math.log(128 / 16)
        bucket = torch.where(distance < 16, distance, (16 + (share * 16).long()).clamp(max=31))
        return self.table.float()[:, bucket][None]


class FireBias(nn.Module):
    """A learned function of the distance relative to the query's position (arXiv 2310.04418)."""

    def __init__(self, config: TapeConfig) -> None:
        super().__init__()
        self.inner_weight = nn.Parameter(torch.empty(32, 1))
        self.inner_bias = nn.Parameter(torch.zeros(32))
        self.outer_weight = nn.Parameter(torch.empty(config.num_attention_heads, 32))
        self.outer_bias = nn.Parameter(torch.zeros(config.num_attention_heads))
        self.log_scale = nn.Parameter(torch.full((1,), 0.1))
        self.threshold = nn.Parameter(torch.ones(1))

    def forward(self, distance: Tensor, position_ids: Tensor) -> Tensor:
        """As AlibiBias.forward."""
        scale = self.log_scale.float()
        largest = torch.log1p((scale * torch.maximum(position_ids.float(), (self.threshold.float() * 512).abs())).abs())
        share = torch.log1p((scale * distance).abs()) / (largest[..., None] + 1e-6)  # [B, N, K]
        hidden = F.relu(F.linear(share[..., None], self.inner_weight.float(), self.inner_bias.float()))
        return F.linear(hidden, self.outer_weight.float(), self.outer_bias.float()).permute(0, 3, 1, 2)


BIASES: dict[str, type[nn.Module]] = {"alibi": AlibiBias, "t5": T5Bias, "fire": FireBias}


def biased_mask(bias: Tensor, mask: Tensor | None, distance: Tensor, dtype: torch.dtype) -> Tensor:
    """bias [B or 1, H, N, K] and the causal mask in one, to be added to the scores. mask: what transformers made, bool (true: may be
    seen) or to be added, or None if nothing but later tokens is hidden."""
    lowest = torch.finfo(dtype).min
    if mask is None:
        mask = distance >= 0
    hidden = ~mask if mask.dtype == torch.bool else mask < 0
    return bias.to(dtype).masked_fill(hidden, lowest)


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
    """Grouped-query attention with queries, keys and scores as the encoding wants them, whose weights may move e with the values."""

    def __init__(self, config: TapeConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.head_dim**-0.5
        self.is_causal = True
        # Nothing reads the position tensor after the last layer.
        self.moves = (
            config.encoding in UPDATES and config.encoding != "tape_mlp_only" and layer_idx < config.num_hidden_layers - 1
        )
        self.q_proj = nn.Linear(config.hidden_size, config.num_attention_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, config.hidden_size, bias=False)
        self.bias = BIASES[config.encoding](config) if config.encoding in BIASES else None

    def forward(
        self,
        h: Tensor,
        e: Tensor | None,
        mask: Tensor | None,
        past_key_values: Cache | None,
        index: Tensor,
        position_ids: Tensor,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """h [B, N, C], e [B, N, L, W], index [N] of the new tokens among all that the cache holds, position_ids [B, N]. Returns the
        output [B, N, C], the weights if the backend has them, and A e of every query head [B, N, H, W] if it is wanted."""
        q, k, v = (linear(h).unflatten(-1, (-1, self.head_dim)) for linear in (self.q_proj, self.k_proj, self.v_proj))
        if e is not None:
            of_queries, of_keys = e.chunk(2, dim=-1) if self.config.encoding == "xpos" else (e, e)
            q, k = rotate(q, of_queries), rotate(k, of_keys)
        value = torch.cat([v, e.to(v.dtype)], dim=-1) if e is not None and self.moves else v
        q, k, value = (part.transpose(1, 2) for part in (q, k, value))
        if past_key_values is not None:
            k, value = past_key_values.update(k, value, self.layer_idx)
        if self.bias is not None:
            distance = index[:, None] - torch.arange(k.shape[2], device=k.device)
            bias = self.bias(distance.clamp(min=0), position_ids)
            mask = biased_mask(bias, mask, distance, q.dtype).expand(q.shape[0], -1, -1, -1)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        out, weights = attend(self, q, k, value, mask, scaling=self.scaling)
        content, attended_positions = (out[..., : self.head_dim], out[..., self.head_dim :]) if self.moves else (out, None)
        return self.o_proj(content.flatten(2)), weights, attended_positions


class TapePositionUpdate(nn.Module):
    """The two updates of e: e + g * (A e), then e + W_down diag(silu(W_x m)) W_up e over the channels of each token.

    The ablations leave one of them out, or override the shapes and the two products."""

    def __init__(self, config: TapeConfig) -> None:
        super().__init__()
        self.config, self.channels = config, config.num_key_value_heads
        self.attention, self.feed_forward = config.encoding != "tape_mlp_only", config.encoding != "tape_attention_only"
        gain, up, down = self.shapes(config)
        if self.attention:
            self.gain = nn.Parameter(torch.zeros(gain))  # g
        if self.feed_forward:
            self.content = nn.Parameter(torch.empty(config.position_size, config.hidden_size))  # W_x
            self.up = nn.Parameter(torch.zeros(up))  # W_up
            self.down = nn.Parameter(torch.empty(down))  # W_down

    def shapes(self, config: TapeConfig) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Of gain, W_up and W_down."""
        inner, channels = config.position_size, config.num_key_value_heads
        return (config.num_attention_heads,), (inner, channels), (channels, inner)

    def forward(self, e: Tensor, attended_positions: Tensor | None, m: Tensor) -> Tensor:
        """e [B, N, L, W], attended_positions [B, N, H, W] (A e of every query head), m [B, N, C] (output of the MLP)."""
        if attended_positions is not None:
            e = e + self.gained(attended_positions.to(e.dtype).unflatten(2, (self.channels, -1)), self.gain.to(e.dtype))
        if self.feed_forward:
            e = e + self.mixed(e, F.silu(F.linear(m, self.content)))
        return e

    def gained(self, attended_positions: Tensor, gain: Tensor) -> Tensor:
        """Sum over each channel's heads of g (A e): [B, N, L, H/L, W] -> [B, N, L, W]."""
        return (gain.view(self.channels, 1, -1) @ attended_positions).squeeze(3)

    def mixed(self, e: Tensor, active: Tensor) -> Tensor:
        """The feed-forward update of e, from active [B, N, I]."""
        outer = (self.down.T[:, :, None] * self.up[:, None, :]).flatten(1)  # [I, L * L]
        mixing = (active @ outer).unflatten(-1, (self.channels, self.channels))  # [B, N, L, L]
        return mixing.to(e.dtype) @ e


class SeparateUpdate(TapePositionUpdate):
    """Weights of their own for cosines and sines."""

    def shapes(self, config: TapeConfig) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        inner, channels = config.position_size, config.num_key_value_heads
        return (config.num_attention_heads, 2), (2 * inner, channels), (2 * channels, inner)

    def gained(self, attended_positions: Tensor, gain: Tensor) -> Tensor:
        parts = attended_positions.unflatten(-1, (2, -1)).transpose(3, 4)  # [B, N, L, 2, H/L, R/2]
        return (gain.view(self.channels, -1, 2).transpose(1, 2)[:, :, None] @ parts).flatten(3)

    def mixed(self, e: Tensor, active: Tensor) -> Tensor:
        up, down = self.up.unflatten(0, (2, -1)), self.down.unflatten(0, (2, -1))  # [2, I, L], [2, L, I]
        outer = (down.permute(2, 0, 1)[..., None] * up.transpose(0, 1)[:, :, None]).flatten(1)  # [I, 2 * L * L]
        mixing = (active @ outer).unflatten(-1, (2, self.channels, self.channels))
        return (mixing.to(e.dtype) @ e.unflatten(-1, (2, -1)).transpose(2, 3)).transpose(2, 3).flatten(3)


class VectorUpdate(TapePositionUpdate):
    """Acts on R instead of L."""

    def shapes(self, config: TapeConfig) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        inner, size = config.position_size, config.head_dim
        return (size,), (inner, size), (size, inner)

    def gained(self, attended_positions: Tensor, gain: Tensor) -> Tensor:
        return gain.repeat(2) * attended_positions.sum(3)

    def mixed(self, e: Tensor, active: Tensor) -> Tensor:
        inner = active.to(e.dtype)[:, :, None, None] * (e.unflatten(-1, (2, -1)) @ self.up.to(e.dtype).T)
        return (inner @ self.down.to(e.dtype).T).flatten(3)


class SeparateVectorUpdate(VectorUpdate):
    """The same with weights of their own for cosines and sines."""

    def shapes(self, config: TapeConfig) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        inner, size = config.position_size, config.head_dim
        return (2, size), (2 * inner, size), (2 * size, inner)

    def gained(self, attended_positions: Tensor, gain: Tensor) -> Tensor:
        return gain.flatten() * attended_positions.sum(3)

    def mixed(self, e: Tensor, active: Tensor) -> Tensor:
        up, down = (weight.to(e.dtype).unflatten(0, (2, -1)) for weight in (self.up, self.down))  # [2, I, R], [2, R, I]
        inner = active.to(e.dtype)[:, :, None, None, None] * (e.unflatten(-1, (2, 1, -1)) @ up.mT)  # [B, N, L, 2, 1, I]
        return (inner @ down.mT).flatten(3)


class FlatUpdate(TapePositionUpdate):
    """The feed-forward update acts on L and R at once."""

    def shapes(self, config: TapeConfig) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        inner, flat = config.position_size, config.num_key_value_heads * config.head_dim
        return (config.num_attention_heads,), (inner, flat), (flat, inner)

    def mixed(self, e: Tensor, active: Tensor) -> Tensor:
        parts = e.unflatten(-1, (2, -1)).transpose(2, 3).flatten(3)  # [B, N, 2, L * R]
        mixed = (active.to(e.dtype)[:, :, None] * (parts @ self.up.to(e.dtype).T)) @ self.down.to(e.dtype).T
        return mixed.unflatten(-1, (self.channels, -1)).transpose(2, 3).flatten(3)


UPDATES: dict[str, type[TapePositionUpdate]] = {
    "tape": TapePositionUpdate,
    "tape_attention_only": TapePositionUpdate,
    "tape_mlp_only": TapePositionUpdate,
    "tape_no_rotation_equivariance": SeparateUpdate,
    "tape_vector": VectorUpdate,
    "tape_vector_no_rotation_equivariance": SeparateVectorUpdate,
    "tape_no_equivariance": FlatUpdate,
}


class TapeDecoderLayer(GradientCheckpointingLayer):
    """Pre-norm attention and MLP over the hidden states x and the position tensor e, if there is one."""

    def __init__(self, config: TapeConfig, layer_idx: int) -> None:
        super().__init__()
        self.input_layernorm = TapeRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = TapeAttention(config, layer_idx)
        self.post_attention_layernorm = TapeRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = TapeMLP(config)
        self.position = UPDATES[config.encoding](config) if config.encoding in UPDATES else None
        self.is_last = layer_idx == config.num_hidden_layers - 1

    def forward(
        self,
        x: Tensor,
        e: Tensor | None,
        mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        index: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """x [B, N, C], e [B, N, L, W] or None; returns both after this layer (the last layer leaves e alone)."""
        attended, _, attended_positions = self.self_attn(self.input_layernorm(x), e, mask, past_key_values, index, position_ids)
        x = x + attended
        m = self.mlp(self.post_attention_layernorm(x))
        if self.position is not None and not self.is_last:
            e = self.position(e, attended_positions, m)
        return x + m, e


class TapePreTrainedModel(PreTrainedModel):
    """What transformers has to know of TAPE. Its flash and flex attention need values as wide as keys: not claimed."""

    config: TapeConfig
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
        std = self.config.initializer_range
        if isinstance(module, TapePositionUpdate):  # a new model starts from rotary positions
            if module.attention:
                init.zeros_(module.gain)
            if module.feed_forward:
                init.zeros_(module.up)
                init.normal_(module.content, mean=0.0, std=std)
                init.normal_(module.down, mean=0.0, std=std)
        elif isinstance(module, T5Bias):
            init.normal_(module.table, mean=0.0, std=std)
        elif isinstance(module, FireBias):
            init.normal_(module.inner_weight, mean=0.0, std=std)
            init.normal_(module.outer_weight, mean=0.0, std=std)
            init.zeros_(module.inner_bias)
            init.zeros_(module.outer_bias)
            init.constant_(module.log_scale, 0.1)
            init.ones_(module.threshold)


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
        [1, N], by default counted from each row's first token that is not padding. (With RandPE they are what its draw is
        read at.)"""
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
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        index = torch.arange(x.shape[1], device=x.device) + past
        if self.config.encoding == "randpe":
            position_ids = drawn_positions(self.config, position_ids)
        if self.config.encoding == "sinusoidal":
            x = x + embedding_term(position_ids, x.shape[-1]).to(x.dtype)
        e = initial_state(self.config, position_ids)
        if e is not None:
            e = e.expand(x.shape[0], -1, -1, -1)
        for layer in self.layers:
            x, e = layer(x, e, mask, past_key_values=past_key_values, index=index, position_ids=position_ids)
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
    """The model with a language modelling head."""

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

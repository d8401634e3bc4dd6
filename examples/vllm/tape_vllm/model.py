"""Language models exported by MegaTAPE, made of vLLM's parallel layers.

Beside the hidden states, layers pass on the position state of the encoding. For TAPE it is a position tensor e for each token,
which every layer updates: by attention, which averages the e of earlier tokens with the weights of their values, and by a
product that reads the output of the MLP (docs/tape_in_five_minutes.md in MegaTAPE).

vLLM's cache therefore holds rotated keys, and [v | e] as values, which are twice as wide as keys. All layers have pages of the
same size, also the last one, which does not average e, so that vLLM keeps them in one group.

Tensor-parallel ranks shard heads, as for other models. Each rank has e of all channels, because the update mixes channels, and
gathers the averaged e of all heads in each layer.

Shapes: N tokens of all requests in a batch, D hidden size, H query heads, L key/value heads, R head size, W width of a state
channel, T tensor-parallel ranks.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_gather,
)
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.model_executor.models.utils import maybe_prefix
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from tape_vllm.exported_code import ExportedCode, load_exported_code

# Weights that vLLM stores in one matrix: name in the export -> name here, and which part of it.
STACKED = {
    ".q_proj.": (".qkv_proj.", "q"),
    ".k_proj.": (".qkv_proj.", "k"),
    ".v_proj.": (".qkv_proj.", "v"),
    ".gate_proj.": (".gate_up_proj.", 0),
    ".up_proj.": (".gate_up_proj.", 1),
}


class Parts(NamedTuple):
    """Configuration and code that every layer of a model is built from.

    Attributes:
        config: Configuration of the model.
        code: Code of its position encoding.
        vllm_config: vLLM's configuration.
    """

    config: Any
    code: ExportedCode
    vllm_config: VllmConfig


class TapeMLP(nn.Module):
    """SwiGLU feed-forward network."""

    def __init__(self, parts: Parts, prefix: str) -> None:
        super().__init__()
        config = parts.config
        quantization = parts.vllm_config.quant_config
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden_size,
            [config.intermediate_size] * 2,
            bias=False,
            quant_config=quantization,
            prefix=f"{prefix}.gate_up_proj",
        )
        self.down_proj = RowParallelLinear(
            config.intermediate_size,
            config.hidden_size,
            bias=False,
            quant_config=quantization,
            prefix=f"{prefix}.down_proj",
        )
        self.activation = SiluAndMul()

    def forward(self, h: Tensor) -> Tensor:
        gate_up, _ = self.gate_up_proj(h)
        output, _ = self.down_proj(self.activation(gate_up))
        return output


class TapeAttention(nn.Module):
    """Grouped-query attention that averages the position state with the values."""

    def __init__(self, parts: Parts, layer: int, prefix: str) -> None:
        super().__init__()
        config = parts.config
        self.code = parts.code
        layer_code = parts.code.layers[layer]
        self.encoding = layer_code.encoding
        self.reads_updates = layer_code.reads_updates
        # The last layer with the model's encoding does not average the state, because no later layer reads it.
        self.averages_state = self.encoding.moves_state and not layer_code.is_last

        num_ranks = get_tensor_model_parallel_world_size()
        if config.num_key_value_heads % num_ranks:
            raise ValueError(
                f"tensor_parallel_size {num_ranks}: it must divide the model's {config.num_key_value_heads} key/value heads"
            )
        self.head_dim = config.head_dim
        self.num_heads = config.num_attention_heads // num_ranks
        self.num_channels = config.num_key_value_heads // num_ranks
        self.all_channels = config.num_key_value_heads
        first = get_tensor_model_parallel_rank() * self.num_channels
        self.channels = slice(first, first + self.num_channels)

        quantization = parts.vllm_config.quant_config
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size,
            config.head_dim,
            config.num_attention_heads,
            config.num_key_value_heads,
            bias=config.attention_bias != "none",
            quant_config=quantization,
            prefix=f"{prefix}.qkv_proj",
        )
        self.o_proj = RowParallelLinear(
            config.num_attention_heads * config.head_dim,
            config.hidden_size,
            bias=config.attention_bias == "qkvo",
            quant_config=quantization,
            prefix=f"{prefix}.o_proj",
        )
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

        # Width of a cached state channel. It is the same in all layers, also in those that do not average the state.
        self.state_width = 0
        wide_values = {}
        if parts.code.encoding.moves_state:
            self.state_width = parts.code.encoding.state_width
            width = config.head_dim + self.state_width
            wide_values = {"head_size_v": width, "attn_backend": wide_value_backend(config.head_dim, width)}
        self.attn = Attention(
            self.num_heads,
            config.head_dim,
            config.head_dim**-0.5,
            num_kv_heads=self.num_channels,
            cache_config=parts.vllm_config.cache_config,
            quant_config=quantization,
            per_layer_sliding_window=layer_code.window,
            prefix=f"{prefix}.attn",
            **wide_values,
        )

    def forward(self, h: Tensor, state: Any) -> tuple[Tensor, Tensor | None]:
        """Attend to the tokens in the cache and to the new ones, which the cache takes.

        Args:
            h: Normalized hidden states, [N, D].
            state: Position state before this layer, a PositionState for a batch of one row; None without one.

        Returns:
            Output, [N, D]; and the state averaged by the weights of all query heads, [1, N, H, W], or None if this layer does
            not average it.
        """
        num_tokens = h.shape[0]
        query_size = self.num_heads * self.head_dim
        key_size = self.num_channels * self.head_dim
        qkv, _ = self.qkv_proj(h)
        q, k, v = qkv.split([query_size, key_size, key_size], dim=-1)
        q = q.reshape(1, num_tokens, self.num_heads, self.head_dim)
        k = k.reshape(1, num_tokens, self.num_channels, self.head_dim)
        v = v.reshape(1, num_tokens, self.num_channels, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q.contiguous())
            k = self.k_norm(k.contiguous())

        local_state = self._local_state(state)
        if self.encoding.has_position_tensor:
            q, k = self.code.rotate_qk(q, k, local_state)
        elif state is not None:
            q, k = self.encoding.rotate_qk(q, k, state.initial, ())
        if self.averages_state:
            e = local_state.tensor(self.num_channels)
            v = torch.cat([v, e.to(v.dtype)], dim=-1)
        elif self.state_width:
            v = nn.functional.pad(v, (0, self.state_width))

        output = self.attn(q.reshape(num_tokens, -1), k.reshape(num_tokens, -1), v.reshape(num_tokens, -1))
        output = output.reshape(num_tokens, self.num_heads, self.head_dim + self.state_width)
        averaged_values = output[..., : self.head_dim].reshape(num_tokens, query_size)
        attended, _ = self.o_proj(averaged_values)
        if not self.averages_state:
            return attended, None
        averaged_state = output[..., self.head_dim :].reshape(num_tokens, -1)
        averaged_state = tensor_model_parallel_all_gather(averaged_state)
        return attended, averaged_state.reshape(1, num_tokens, -1, self.state_width)

    def _local_state(self, state: Any) -> Any:
        """Return the state that this layer reads, of this rank's channels."""
        if state is None or state.delta is None:
            return state
        if not self.reads_updates:
            return state._replace(delta=None)
        return state._replace(delta=state.delta[:, :, self.channels])


class TapeDecoderLayer(nn.Module):
    """Pre-norm layer of attention and MLP. It updates the hidden states, and the state if the encoding moves it."""

    def __init__(self, parts: Parts, layer: int, prefix: str) -> None:
        super().__init__()
        config = parts.config
        layer_code = parts.code.layers[layer]
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = TapeAttention(parts, layer, f"{prefix}.self_attn")
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = TapeMLP(parts, f"{prefix}.mlp")
        self.position: nn.Module | None = layer_code.encoding.update(parts.code.single)
        self.is_last = layer_code.is_last

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return the hidden states [N, D] and the position state after this layer."""
        attended, averaged_state = self.self_attn(self.input_layernorm(x), state)
        x = x + attended
        m = self.mlp(self.post_attention_layernorm(x))
        if self.position is not None and not self.is_last:
            state = self.position(state, averaged_state, m[None])
        return x + m, state


class TapeModel(nn.Module):
    """Embedding, decoder layers and final norm."""

    def __init__(self, parts: Parts, prefix: str) -> None:
        super().__init__()
        config = parts.config
        self.code = parts.code
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size,
            config.hidden_size,
            quant_config=parts.vllm_config.quant_config,
            prefix=f"{prefix}.embed_tokens",
        )
        layers = []
        for layer in range(config.num_hidden_layers):
            layers.append(TapeDecoderLayer(parts, layer, f"{prefix}.layers.{layer}"))
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, input_ids: Tensor | None, positions: Tensor, inputs_embeds: Tensor | None = None) -> Tensor:
        """Return the hidden states of new tokens.

        Args:
            input_ids: Token ids [N], or None with `inputs_embeds`.
            positions: Position of each token in its request, [N].
            inputs_embeds: Embedded tokens [N, D].

        Returns:
            Normalized hidden states, [N, D].
        """
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        x = inputs_embeds
        initial = self.code.encoding.state(positions[None])
        state = None if initial is None else self.code.PositionState(initial)
        for layer in self.layers:
            x, state = layer(x, state)
        return self.norm(x)


class TapeForCausalLM(nn.Module):
    """Language model with any position encoding that only rotates queries and keys, and updates its state by token."""

    packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}  # noqa: RUF012

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model = vllm_config.model_config
        config = model.hf_config
        code = load_exported_code(model.model, config, model.code_revision)
        self.model = TapeModel(Parts(config, code, vllm_config), maybe_prefix(prefix, "model"))
        self.lm_head = ParallelLMHead(
            config.vocab_size,
            config.hidden_size,
            quant_config=vllm_config.quant_config,
            prefix=maybe_prefix(prefix, "lm_head"),
        )
        self.is_tied = config.tie_word_embeddings
        if self.is_tied:
            self.lm_head = self.lm_head.tie_weights(self.model.embed_tokens)
        self.logits_processor = LogitsProcessor(config.vocab_size, soft_cap=config.logit_softcap)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Return the embedded tokens, [N, D]."""
        return self.model.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Return the hidden states of new tokens, see TapeModel.forward. There are no pipeline stages."""
        return self.model(input_ids, positions, inputs_embeds)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """Return logits [N, vocabulary], or None on ranks that vLLM does not gather them on."""
        return self.logits_processor(self.lm_head, hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load the weights of an export.

        Args:
            weights: Names in the export and weights.

        Returns:
            Names of the loaded parameters.
        """
        parameters = dict(self.named_parameters())
        loaded = set()
        for name, weight in weights:
            if self.is_tied and name == "lm_head.weight":
                continue
            target, shard = _stacked_name(name)
            parameter: Any = parameters[target]
            if shard is None:
                load = getattr(parameter, "weight_loader", default_weight_loader)
                load(parameter, weight)
            else:
                parameter.weight_loader(parameter, weight, shard)
            loaded.add(target)
        return loaded


def wide_value_backend(head_size: int, value_size: int) -> Any:
    """Choose vLLM's attention backend for values that are wider than keys: the user's, FlashAttention, or Triton.

    Args:
        head_size: Width of keys.
        value_size: Width of values, the same in all layers, because vLLM's backends store it in their class.
    """
    requested = get_current_vllm_config().attention_config.backend
    if requested is not None and requested.name.endswith("_DIFFKV"):
        backend = requested.get_class()
    else:
        backend = AttentionBackendEnum.FLASH_ATTN_DIFFKV.get_class()
        if not backend.is_supported_on_current_device(head_size=head_size, head_size_v=value_size, has_sinks=False):
            backend = AttentionBackendEnum.TRITON_ATTN_DIFFKV.get_class()
    backend.set_head_size_v(value_size)
    return backend


def _stacked_name(name: str) -> tuple[str, Any]:
    """Return the parameter that contains a weight of the export, and which part it is, or None for all of it."""
    for part, (stacked, shard) in STACKED.items():
        if part in name:
            return name.replace(part, stacked), shard
    return name, None

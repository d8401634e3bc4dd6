"""Names and configuration of our models in transformers' terms, and which kinds of model can be exported."""

from typing import Any

import torch
from transformers import LlamaConfig, PreTrainedConfig

from megatape.config import Config, ModelConfig
from megatape.export.configuration_tape import TapeConfig
from megatape.export.tokenizer import SpecialTokens

_TOP = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight", "head.weight": "lm_head.weight"}
_LAYER = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.query.weight": "self_attn.q_proj.weight",
    "attention.key.weight": "self_attn.k_proj.weight",
    "attention.value.weight": "self_attn.v_proj.weight",
    "attention.output.weight": "self_attn.o_proj.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
    "mlp.gate.weight": "mlp.gate_proj.weight",
    "mlp.up.weight": "mlp.up_proj.weight",
    "mlp.down.weight": "mlp.down_proj.weight",
    "position.gain": "position.gain",
    "position.content": "position.content",
    "position.up": "position.up",
    "position.down": "position.down",
}


def exported_name(name: str) -> str:
    """Name of one of our parameters in an exported model. Queries and keys rotate halves in both: no permutation."""
    if name in _TOP:
        return _TOP[name]
    _, layer, rest = name.split(".", 2)
    return f"model.layers.{layer}.{_LAYER[rest]}"


def exported_dtype(config: Config) -> torch.dtype:
    """The run's compute precision, in which the exported weights are stored."""
    return getattr(torch, config.training.precision)


def exported_config(config: Config, special: SpecialTokens) -> PreTrainedConfig:
    """Configuration of the exported model: TapeConfig, or LlamaConfig for rotary positions.

    Raises ValueError for a shape that transformers' Llama refuses."""
    model = config.model
    shared: dict[str, Any] = {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.mlp_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.max_positions,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rotary_base},
        "rms_norm_eps": model.norm_eps,
        "initializer_range": model.init_std,
        "tie_word_embeddings": model.tie_embeddings,
        "bos_token_id": special.bos,
        "eos_token_id": special.eos,
        "pad_token_id": special.pad,
        "dtype": exported_dtype(config),
    }
    if model.encoding == "rope":
        _check_llama(model)
        return LlamaConfig(**shared, architectures=["LlamaForCausalLM"])
    shared["position_size"] = model.position_size
    shared["auto_map"] = {
        "AutoConfig": "configuration_tape.TapeConfig",
        "AutoModel": "modeling_tape.TapeModel",
        "AutoModelForCausalLM": "modeling_tape.TapeForCausalLM",
    }
    return TapeConfig(**shared, architectures=["TapeForCausalLM"])


def _check_llama(model: ModelConfig) -> None:
    if model.hidden_size % model.num_heads:
        raise ValueError(
            f"a rope model is exported as a Llama, and transformers' Llama needs a hidden_size that is a multiple of num_heads; "
            f"this one has {model.hidden_size} and {model.num_heads}: train with hidden_size = n x num_heads (head_dim is free)"
        )

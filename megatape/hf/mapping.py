"""Names and configuration of our models in transformers' terms, and which kinds of model can be exported."""

from typing import Any

import torch
from transformers import LlamaConfig, PreTrainedConfig

from megatape.config import Config, ModelConfig
from megatape.hf.configuration_tape import TapeConfig
from megatape.hf.tokenizer import SpecialTokens
from megatape.model.encodings.rotary import scaled_base

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
}
# What belongs to a position encoding keeps the end of its name.
_ENCODING = {"position.": "position.", "attention.bias.": "self_attn.bias."}


def exported_name(name: str) -> str:
    """Name of one of our parameters in an exported model. Queries and keys rotate halves in both: no permutation."""
    if name in _TOP:
        return _TOP[name]
    _, layer, rest = name.split(".", 2)
    for ours, theirs in _ENCODING.items():
        if rest.startswith(ours):
            return f"model.layers.{layer}.{theirs}{rest.removeprefix(ours)}"
    return f"model.layers.{layer}.{_LAYER[rest]}"


def is_llama(model: ModelConfig) -> bool:
    """Whether transformers' Llama is this model; all others bring their own code."""
    return model.encoding == "rope"


def exported_dtype(config: Config) -> torch.dtype:
    """The run's compute precision, in which the exported weights are stored."""
    return getattr(torch, config.training.precision)


def exported_config(config: Config, special: SpecialTokens) -> PreTrainedConfig:
    """Configuration of the exported model: LlamaConfig for rotary positions, scaled or not, else TapeConfig.

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
        "rope_parameters": _rope_parameters(model),
        "rms_norm_eps": model.norm_eps,
        "initializer_range": model.init_std,
        "tie_word_embeddings": model.tie_embeddings,
        "bos_token_id": special.bos,
        "eos_token_id": special.eos,
        "pad_token_id": special.pad,
        "dtype": exported_dtype(config),
    }
    if is_llama(model):
        _check_llama(model)
        return LlamaConfig(**shared, architectures=["LlamaForCausalLM"])
    shared["encoding"] = model.encoding
    shared["position_size"] = model.position_size
    if model.encoding == "randpe":  # the evaluation draw of the training run
        shared["position_length"], shared["position_seed"] = config.data.sequence_length, config.training.seed
    shared["auto_map"] = {
        "AutoConfig": "configuration_tape.TapeConfig",
        "AutoModel": "modeling_tape.TapeModel",
        "AutoModelForCausalLM": "modeling_tape.TapeForCausalLM",
    }
    return TapeConfig(**shared, architectures=["TapeForCausalLM"])


def _rope_parameters(model: ModelConfig) -> dict[str, Any]:
    scaling = model.scaling
    if scaling is None:
        return {"rope_type": "default", "rope_theta": model.rotary_base}
    if scaling.kind == "theta":
        return {"rope_type": "default", "rope_theta": scaled_base(model.head_dim, model.rotary_base, scaling.factor)}
    parameters: dict[str, Any] = {"rope_type": scaling.kind, "rope_theta": model.rotary_base, "factor": scaling.factor}
    if scaling.kind == "yarn":
        parameters["original_max_position_embeddings"] = scaling.original_length
    return parameters


def _check_llama(model: ModelConfig) -> None:
    if model.hidden_size % model.num_heads:
        raise ValueError(
            f"a rope model is exported as a Llama, and transformers' Llama needs a hidden_size that is a multiple of num_heads; "
            f"this one has {model.hidden_size} and {model.num_heads}: train with hidden_size = n x num_heads (head_dim is free)"
        )

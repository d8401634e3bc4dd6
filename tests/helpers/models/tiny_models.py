"""Tiny random models from other families, as saved by transformers, with all features that importing supports."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB_SIZE = 330
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0, "beta_slow": 0.5}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
# Grouped queries, and a head size other than C / H, everywhere.
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "head_dim": 12,
    "rms_norm_eps": 1e-5,
}
MODELS: dict[str, tuple[type[PreTrainedModel], Any, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    "llama3": (
        LlamaForCausalLM,
        LlamaConfig,
        {
            "attention_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": _LLAMA3 | {"rope_theta": 1e3, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        },
    ),
    "linear": (
        LlamaForCausalLM,
        LlamaConfig,
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    ),
    "mistral": (
        MistralForCausalLM,
        MistralConfig,
        {"sliding_window": 256, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    ),
    "qwen2": (
        Qwen2ForCausalLM,
        Qwen2Config,
        {"rope_parameters": _YARN | {"rope_theta": 1e4, "mscale": 1.3, "mscale_all_dim": 0.7}},
    ),
    "qwen3": (
        Qwen3ForCausalLM,
        Qwen3Config,
        {
            "attention_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": _YARN | {"rope_theta": 1e4, "truncate": False, "attention_factor": 1.4},
        },
    ),
}


def save_tiny(
    name: str, folder: Path, dtype: torch.dtype = torch.float32, shard: str = "1GB", **changes: Any
) -> PreTrainedModel:
    """Save model `name` from MODELS, making every weight matter, including norms and biases, and return it."""
    model_class, config_class, fields = MODELS[name]
    model = model_class(config_class(**SHAPE | fields | changes))
    generator = torch.Generator().manual_seed(0)
    for key, parameter in model.named_parameters():
        parameter.data.normal_(1.0 if "norm" in key else 0.0, 0.15, generator=generator)
    torch.nn.Module.to(model, dtype)
    model.eval()
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def save_beside_tokenizer(folder: Path) -> Path:
    """Add a random model to a tokenizer's folder. Its config declares no end token."""
    generation = folder / "generation_config.json"
    content = b"{}"
    if generation.exists():
        content = generation.read_bytes()
    save_tiny("qwen2", folder, vocab_size=640)
    generation.write_bytes(content)
    return folder

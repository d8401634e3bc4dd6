"""Model architectures described by configurations of other families."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from megatape.config.sections.scaling import Llama3Scaling
from megatape.hf.architecture import read_architecture
from megatape.hf.pretrained import read_pretrained
from tests.helpers.models.tiny_models import save_tiny


def test_settings_of_earlier_versions_are_read(tiny: Callable[..., Any], tmp_path: Path) -> None:
    """Earlier versions wrote rope_theta and rope_scaling, and stored frequencies as a tensor."""
    expected = read_architecture(tiny("llama3")[0]).model
    folder = tmp_path / "model"
    save_tiny("llama3", folder)
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    scaling = {name: value for name, value in fields["rope_parameters"].items() if name != "rope_theta"}
    for left in ({}, {"rope_parameters": fields["rope_parameters"]}):
        rest = {name: value for name, value in fields.items() if name != "rope_parameters"}
        path.write_text(json.dumps(rest | left | {"rope_theta": 1e3, "rope_scaling": scaling}))
        assert read_architecture(folder).model == expected
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)}, folder / "model.safetensors")
    assert len(read_pretrained(folder).weights.tensors) == len(tensors)
    save_file(tensors | {"model.norm.weight": tensors["model.norm.weight"].bfloat16()}, folder / "model.safetensors")
    assert read_pretrained(folder).weights.dtype == torch.float32  # float32 represents both tensors' values.


def _published(**fields: Any) -> dict[str, Any]:
    """Return the settings shared by the configurations below."""
    return {"hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True} | fields


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# Published settings in well-known models' config.json, in fields where a table by model name would be wrong
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any], int | None]] = {
    "Llama-2-7B": (
        _published(
            architectures=["LlamaForCausalLM"],
            model_type="llama",
            hidden_size=4096,
            intermediate_size=11008,
            max_position_embeddings=4096,
            num_attention_heads=32,
            num_hidden_layers=32,
            num_key_value_heads=32,
            pretraining_tp=1,
            rms_norm_eps=1e-05,
            rope_scaling=None,
            torch_dtype="float16",
            vocab_size=32000,
        ),
        {"rotary_base": 1e4, "scaling": None, "num_kv_heads": 32, "head_dim": 128, "norm_eps": 1e-5, "attention_bias": "none"},
        None,
    ),
    "Llama-3.1-8B": (
        _published(
            architectures=["LlamaForCausalLM"],
            model_type="llama",
            attention_bias=False,
            attention_dropout=0.0,
            hidden_size=4096,
            intermediate_size=14336,
            max_position_embeddings=131072,
            mlp_bias=False,
            num_attention_heads=32,
            num_hidden_layers=32,
            num_key_value_heads=8,
            rms_norm_eps=1e-05,
            rope_scaling=LLAMA3 | {"rope_type": "llama3"},
            rope_theta=500000.0,
            vocab_size=128256,
        ),
        {"rotary_base": 5e5, "num_kv_heads": 8, "max_positions": 131072, "vocab_size": 128256},
        None,
    ),
    "Mistral-7B-v0.1": (
        _published(
            architectures=["MistralForCausalLM"],
            model_type="mistral",
            hidden_size=4096,
            intermediate_size=14336,
            max_position_embeddings=32768,
            num_attention_heads=32,
            num_hidden_layers=32,
            num_key_value_heads=8,
            rms_norm_eps=1e-05,
            rope_theta=10000.0,
            sliding_window=4096,
            vocab_size=32000,
        ),
        {"rotary_base": 1e4, "scaling": None, "head_dim": 128},
        4096,
    ),
    "Qwen2.5-0.5B": (
        _published(
            architectures=["Qwen2ForCausalLM"],
            model_type="qwen2",
            attention_dropout=0.0,
            hidden_size=896,
            intermediate_size=4864,
            max_position_embeddings=32768,
            max_window_layers=24,
            num_attention_heads=14,
            num_hidden_layers=24,
            num_key_value_heads=2,
            rms_norm_eps=1e-06,
            rope_theta=1000000.0,
            sliding_window=32768,
            tie_word_embeddings=True,
            use_mrope=False,
            use_sliding_window=False,
            vocab_size=151936,
        ),
        {"rotary_base": 1e6, "attention_bias": "qkv", "tie_embeddings": True, "head_dim": 64, "norm_eps": 1e-6},
        None,
    ),
    "Qwen3-0.6B": (
        _published(
            architectures=["Qwen3ForCausalLM"],
            model_type="qwen3",
            attention_bias=False,
            attention_dropout=0.0,
            head_dim=128,
            hidden_size=1024,
            intermediate_size=3072,
            max_position_embeddings=40960,
            max_window_layers=28,
            num_attention_heads=16,
            num_hidden_layers=28,
            num_key_value_heads=8,
            rms_norm_eps=1e-06,
            rope_scaling=None,
            rope_theta=1000000,
            sliding_window=None,
            tie_word_embeddings=True,
            use_sliding_window=False,
            vocab_size=151936,
        ),
        {"rotary_base": 1e6, "attention_bias": "none", "qk_norm": True, "head_dim": 128, "num_heads": 16},
        None,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations(tmp_path: Path, name: str) -> None:
    fields, expected, window = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    # This test reads no weights.
    (tmp_path / "model.safetensors").touch()
    found = read_architecture(tmp_path)
    assert {field: getattr(found.model, field) for field in expected} == expected
    assert found.model.sliding_window == window
    assert found.model.encoding == "rope"
    if name == "Llama-3.1-8B":
        assert found.model.scaling == Llama3Scaling(
            kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192
        )

"""Configurations and weights that an import refuses, naming what is wrong."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from megatape.hf.importing.importer import import_model
from tests.helpers.data.json_edits import change_fields
from tests.helpers.models.tiny_models import save_tiny

NORM = "model.norm.weight"
INDEX = "model.safetensors.index.json"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("llama", {"architectures": ["GemmaForCausalLM"]}, "architectures is .*Gemma.*: only LlamaForCausalLM is supported"),
        ("llama", {"architectures": None}, "architectures is None"),
        ("llama", {"model_type": "mistral"}, "model_type is 'mistral', but architectures"),
        ("llama", {"auto_map": {"AutoModel": "own.Model"}}, "auto_map names code"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config is set"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu'"),
        ("llama", {"mlp_bias": True}, "mlp_bias is True; only False"),
        ("llama", {"pretraining_tp": 2}, "pretraining_tp is 2; only 1"),
        ("qwen2", {"attention_dropout": 0.1}, "attention_dropout is 0.1"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ("llama", {"rope_parameters": YARN | {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ("llama", {"rope_parameters": YARN | {"rope_type": "dynamic"}}, "rope_type is 'dynamic': only"),
        ("llama", {"rope_parameters": YARN | {"mrope_section": [1]}}, "mrope_section of its rope_parameters"),
        ("qwen3", {"rope_parameters": {"full_attention": YARN, "sliding_attention": YARN}}, "differ between layers"),
        ("llama", {"rope_theta": 1e6}, "rope_theta is 1000000.0 and in rope_parameters 500000.0"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_parameters .* and rope_scaling .* contradict"),
        ("linear", {"rope_scaling": None}, "rope_parameters .* and rope_scaling None contradict"),
        (
            "llama",
            {"rope_parameters": None, "rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}},
            "rope_scaling has type 'linear' and rope_type 'yarn'",
        ),
        ("llama", {"num_key_value_heads": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
        ("qwen3", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types has 'chunked_attention'; only"),
        ("llama", {"tie_word_embeddings": True}, "lm_head.weight differs from model.embed_tokens.weight"),
        ("qwen3", {"tie_word_embeddings": False}, "no tensor lm_head.weight"),
        ("llama", {"intermediate_size": 64}, r"gate_proj.weight has shape \(48, 32\), by config.json it is \(64, 32\)"),
        ("llama", {"num_hidden_layers": 1}, "tensor model.layers.1.*belongs to no parameter"),
        ("qwen2", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "_proj.bias belongs to no parameter"),
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, name: str, fields: dict[str, Any], message: str) -> None:
    folder = tmp_path / "model"
    save_tiny(name, folder)
    change_fields(folder / "config.json", **fields)
    with pytest.raises(ValueError, match=message):
        import_model(folder, tmp_path / "out", "rope", 64)
    assert not (tmp_path / "out").exists()


def _read_index(folder: Path) -> dict[str, str]:
    """Return the file of each tensor."""
    index: dict[str, str] = json.loads((folder / INDEX).read_text())["weight_map"]
    return index


def _drop_norm_from_index(folder: Path) -> None:
    index = _read_index(folder)
    del index[NORM]
    change_fields(folder / INDEX, weight_map=index)


def _name_a_missing_file(folder: Path) -> None:
    change_fields(folder / INDEX, weight_map=_read_index(folder) | {NORM: "gone.safetensors"})


def _name_a_missing_tensor(folder: Path) -> None:
    index = _read_index(folder)
    change_fields(folder / INDEX, weight_map=index | {"other": index[NORM]})


def _add_a_single_file(folder: Path) -> None:
    save_file({NORM: torch.ones(3)}, folder / "model.safetensors")


def _remove_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _move_norm(folder: Path) -> None:
    """Store the norm in the first file as well."""
    first = min(folder.glob("*.safetensors"))
    save_file(load_file(first) | {NORM: torch.ones(32)}, first)


def _truncate(folder: Path) -> None:
    first = min(folder.glob("*.safetensors"))
    first.write_bytes(first.read_bytes()[:-100])


def _replace_weights(folder: Path, name: str) -> None:
    for path in [*folder.glob("*.safetensors"), folder / INDEX]:
        path.unlink()
    (folder / name).write_bytes(b"x")


def _store_norm_as_int8(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        if NORM in tensors:
            tensors[NORM] = tensors[NORM].to(torch.int8)
        save_file(tensors, path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_truncate, "safetensors: not a safetensors file"),
        (_move_norm, f"(tensor {NORM} is in .* and in|holds tensor {NORM}, which .* has in)"),
        (_drop_norm_from_index, f"holds tensor {NORM}, which .* has in no file"),
        (_name_a_missing_file, "no gone.safetensors, which"),
        (_name_a_missing_tensor, "no tensor other, which"),
        (_add_a_single_file, "holds model.safetensors and"),
        (partial(_replace_weights, name="pytorch_model.bin"), "pytorch_model.bin holds pickled weights.*convert"),
        (partial(_replace_weights, name="consolidated.00.pth"), "Meta's layout: convert"),
        (partial(_replace_weights, name="adapter_config.json"), "an adapter, no model"),
        (partial(_replace_weights, name="other"), "neither model.safetensors nor"),
        (_remove_config, "no config.json"),
        (_store_norm_as_int8, f"tensor {NORM} is stored as I8; only"),
    ],
)
def test_weights_that_are_refused(llama: Path, tmp_path: Path, damage: Callable[[Path], Any], message: str) -> None:
    damage(llama)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        import_model(llama, tmp_path / "out", "rope", None)
    assert not (tmp_path / "out").exists()


def test_values_that_are_not_finite_are_refused(llama: Path, tmp_path: Path) -> None:
    path = max(llama.glob("*.safetensors"))
    tensors = load_file(path)
    name = min(tensors)
    tensors[name].view(-1)[0] = float("nan")
    save_file(tensors, path)
    with pytest.raises(ValueError, match=f"tensor {name} has values that are NaN or infinite"):
        import_model(llama, tmp_path / "out", "rope", None)

"""The methods of megatape study finetune: what they train and change, against the paper's figures for Llama 2 7B."""

import json
from pathlib import Path
from typing import Any

import pytest

from megatape.config import Config, ScalingConfig, differences, load_config
from megatape.config.section import Identity
from megatape.model.trainable import count_trainable
from megatape.study.methods import METHODS, method_settings

LLAMA2_7B = {
    "encoding": "rope",
    "num_layers": 32,
    "hidden_size": 4096,
    "num_heads": 32,
    "mlp_size": 11008,
    "vocab_size": 32000,
    "max_positions": 4096,
}
# The paper: 131.08M + 0.27M (its code trains both with every method), 8.39M, 17.04M.
EMBEDDING, NORMS, LORA = 32000 * 4096, 65 * 4096, 32 * 4 * 2 * 8 * 4096
TAPE = 32 * (128 * 4096 + 2 * 128 * 32 + 32)  # in every layer a matrix on h, W_up, W_down, a gain for each channel


def configured(name: str, folder: Path) -> Config:
    """A run of the method on Llama 2 7B, from 4096 to 8192 tokens."""
    raw: dict[str, Any] = {
        "run": {"directory": "run"},
        "model": LLAMA2_7B,
        "data": {"path": "data", "sequence_length": 4096},
        "training": {"steps": 1000, "global_batch_size": 64, "micro_batch_size": 1},
        "optimizer": {"learning_rate": 2e-5},
        "export": {"family": "llama"},
    }
    (folder / "config.json").write_text(json.dumps(raw))
    settings = method_settings(name, 4096, 8192)
    return load_config(folder / "config.json", [f"{path}={json.dumps(value)}" for path, value in settings.items()])


def test_weights_trained_are_the_paper_s(tmp_path: Path) -> None:
    configs = {name: configured(name, tmp_path) for name in METHODS}
    counts = {
        name: count_trainable(config.model, config.training.trainable, config.training.frozen)
        for name, config in configs.items()
    }
    others = EMBEDDING + NORMS
    for name in ("lora", "theta"):
        assert counts[name] == LORA + others
    assert counts["tape"] == TAPE + others and counts["tape_lora"] == TAPE + LORA + others
    assert counts["full"] == 6_738_415_616  # of Llama 2 7B


def test_all_methods_see_the_same_samples_at_the_same_positions(tmp_path: Path) -> None:
    configs = {name: configured(name, tmp_path) for name in METHODS}
    for name, config in configs.items():
        assert config.data.sequence_length == config.model.max_positions == 8192
        assert config.model.scaling == ScalingConfig(kind="linear", factor=2.0)
        assert config.model.rotary_base == (1e6 if name == "theta" else 1e4)
        changed = {found.path for found in differences(configs["full"], config) if found.identity is Identity.SAMPLES}
        assert not changed
    with pytest.raises(ValueError, match="length 4096 is no longer than the 4096 tokens"):
        method_settings("lora", 4096, 4096)

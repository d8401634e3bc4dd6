"""Methods of fine-tuning: their configuration files, and the paper's recipe and numbers of weights."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from megatape.config import Config, ScalingConfig, SettingValues, as_overrides, differences, load_config
from megatape.hf.architecture import read_architecture
from megatape.hf.importing.config import starting_config
from megatape.lab.study.finetuning.methods import METHODS, extension
from tests.helpers.runs.config_differences import changed_samples, num_trained

CONFIGS = Path(__file__).parents[4] / "configs"


class Lengths(NamedTuple):
    """Lengths in tokens: the base's own, and the samples for training it."""

    base: int
    samples: int


LENGTHS = {"llama2_7b_8k": Lengths(4096, 8192), "tiny": Lengths(256, 512)}

# config.json in the published folder
LLAMA2_7B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "use_cache": True,
    "vocab_size": 32000,
}
# Numbers of weights. The paper has 131.08M, which has a row for a padding token, + 0.27M (its code trains both with every
# method), 8.39M and 17.04M.
EMBEDDING = 32000 * 4096
NORMS = 65 * 4096
LORA = 32 * 4 * 2 * 8 * 4096
# Per layer: a matrix applied to h, W_up, W_down, and one gain per channel.
TAPE = 32 * (128 * 4096 + 2 * 128 * 32 + 32)
TRAINED_WEIGHTS = {
    "full": 6_738_415_616,  # All weights in Llama 2 7B
    "lora": LORA + EMBEDDING + NORMS,
    "longlora": LORA + EMBEDDING + NORMS,
    "theta": LORA + EMBEDDING + NORMS,
    "tape": TAPE + EMBEDDING + NORMS,
    "tape_lora": TAPE + LORA + EMBEDDING + NORMS,
}


def configured(name: str, size: str = "llama2_7b_8k", settings: SettingValues | None = None) -> Config:
    """Return the configuration in a method's file, with changes."""
    return load_config(CONFIGS / "finetune" / f"{name}_{size}.json", as_overrides(settings or {}))


@pytest.mark.parametrize("size", LENGTHS)
@pytest.mark.parametrize("name", METHODS)
def test_configuration_files_match_the_methods(name: str, size: str) -> None:
    """A file equals the file that trains everything with the method's settings."""
    settings = extension(*LENGTHS[size])
    settings |= METHODS[name].settings()
    settings |= {"run.directory": f"runs/finetune/{name}_{size}"}

    assert configured(name, size) == configured("full", size, settings)


def test_base_matches_the_import_of_llama_2(tmp_path: Path) -> None:
    """Only settings that an import cannot know differ."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA2_7B))
    (tmp_path / "model.safetensors").touch()
    raw = starting_config(read_architecture(tmp_path), Path("runs/llama2_7b"), "rope", 8192, "float16")
    raw["data"]["path"] = "data"
    raw["training"]["steps"] = 1000
    (tmp_path / "imported.json").write_text(json.dumps(raw))

    settings = as_overrides(extension(4096, 8192) | METHODS["full"].settings())
    imported = load_config(tmp_path / "imported.json", settings)

    changed = {difference.path for difference in differences(imported, configured("full"))}
    assert changed <= {
        "run.directory",
        "data.path",
        "training.init_from",
        "zero.stage",
        "evaluation.interval",
        "evaluation.samples",
        "checkpoint.interval",
        "checkpoint.keep",
        "cluster",
    }


def test_small_base_matches_the_documentation() -> None:
    base = load_config(CONFIGS / "tape_tiny.json", ["model.encoding=rope"]).model
    extended = base.model_copy(update={"max_positions": 512, "scaling": ScalingConfig(kind="linear", factor=2.0)})

    assert configured("full", "tiny").model == extended


def test_trained_weights_match_the_paper() -> None:
    assert {name: num_trained(configured(name)) for name in METHODS} == TRAINED_WEIGHTS


def test_all_methods_see_the_same_samples_at_the_same_positions() -> None:
    full = configured("full")
    for name in METHODS:
        config = configured(name)
        rotary_base = 1e4
        if name == "theta":
            rotary_base = 1e6
        assert config.data.sequence_length == 8192
        assert config.model.max_positions == 8192
        assert config.model.scaling == ScalingConfig(kind="linear", factor=2.0)
        assert config.model.rotary_base == rotary_base
        assert changed_samples(full, config) == []


def test_extension_to_the_length_of_the_base_is_refused() -> None:
    with pytest.raises(ValueError, match="length 4096 is no longer than the 4096 tokens"):
        extension(4096, 4096)


def test_recipe_matches_the_paper() -> None:
    config = configured("tape")

    training = config.training
    assert training.steps == 1000
    assert training.global_batch_size == 64
    assert training.precision == "bfloat16"
    assert config.optimizer.learning_rate == 2e-5
    assert config.optimizer.weight_decay == 0.0
    assert config.schedule.kind == "constant"
    assert config.schedule.warmup_fraction * training.steps == 50
    assert config.model.position_size == 128
    assert config.cluster is not None
    assert config.cluster.world_size == 8
    assert config.num_micro_batches(8) == 8

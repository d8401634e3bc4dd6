"""Imports exported without training: the same weights and windows, and refusals."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from megatape.config import load_config, parse_model
from megatape.hf.importing.check import LIMIT
from megatape.hf.importing.checkpoint import ImportCheckpoint
from megatape.hf.importing.importer import import_model
from megatape.model.build import build_model
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.data.json_edits import change_fields
from tests.helpers.models.tiny_models import MODELS
from tests.helpers.processes.command import Command
from tests.helpers.runs.run_folders import flip_byte

# Settings missing in an import's configuration
DATA_AND_STEPS = ["data.path=data", "training.steps=3"]
# Settings that may differ in an export: special tokens are the tokenizer's, and yarn's factor of attention is one number.
REWRITTEN = {"bos_token_id", "eos_token_id", "pad_token_id", "rope_parameters"}


@pytest.mark.parametrize("name", MODELS)
def test_an_import_returns_bit_for_bit(command: Command, source: Callable[..., Path], tmp_path: Path, name: str) -> None:
    """Every tensor and setting is unchanged, except special tokens, which come from the tokenizer."""
    folder = source(name)
    out = tmp_path / "out"

    assert command("import", folder, tmp_path / "import")[0] == 0
    assert command("export", tmp_path / "import", out)[0] == 0

    weights = load_file(out / "model.safetensors")
    expected_weights = load_file(folder / "model.safetensors")
    assert weights.keys() == expected_weights.keys()
    for key, expected in expected_weights.items():
        assert weights[key].dtype == expected.dtype, key
        assert torch.equal(weights[key].view(torch.uint8), expected.view(torch.uint8)), key
    config = json.loads((out / "config.json").read_text())
    expected_config = json.loads((folder / "config.json").read_text())
    for key in (config.keys() | expected_config.keys()) - REWRITTEN:
        assert config.get(key) == expected_config.get(key), key
    assert torch.equal(logits_of(out), logits_of(folder))


@torch.no_grad()
def logits_of(folder: Path) -> Tensor:
    """Return transformers' logits of 200 tokens."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    logits: Tensor = model(torch.arange(200)[None]).logits
    return logits


@pytest.mark.numerics
def test_another_encoding_starts_as_in_training(command: Command, source: Callable[..., Path], tmp_path: Path) -> None:
    import_model(source("mistral"), tmp_path / "import", "tape", None)
    checkpoint = ImportCheckpoint(tmp_path / "import")
    model = build_model(parse_model(checkpoint.config.model.model_dump(), "import"))
    model.load_state_dict({name: checkpoint.tensor(name) for name in checkpoint.names()})

    assert command("export", tmp_path / "import", tmp_path / "out", "--dtype", "float32")[0] == 0

    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
    tokens = torch.arange(60)[None]
    with torch.no_grad():
        assert_close(exported(tokens).logits, model(tokens, tokens), bounds.EXPORTED)


def test_exported_weights_have_the_chosen_precision(command: Command, source: Callable[..., Path], tmp_path: Path) -> None:
    folder = source("mistral")
    import_model(folder, tmp_path / "import", "tape", None)
    assert command("export", tmp_path / "import", tmp_path / "out", "--dtype", "bfloat16")[0] == 0
    weights = load_file(tmp_path / "out" / "model.safetensors")
    expected_head = load_file(folder / "model.safetensors")["lm_head.weight"].bfloat16()
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert torch.equal(weights["lm_head.weight"], expected_head)
    assert any(tensor.any() for name, tensor in weights.items() if ".position." in name)


# A model's fields, its windows in our terms, and its fields in an export
WINDOWED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "mistral": ({"sliding_window": 32}, {"sliding_window": 32, "layers": None}, {"sliding_window": 32}),
    "qwen2": (
        {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1},
        {"sliding_window": None, "layers": "rope@full, rope@32"},
        {"sliding_window": 32, "layer_types": ["full_attention", "sliding_attention"]},
    ),
    "qwen3": (
        {"use_sliding_window": True, "sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"]},
        {"sliding_window": None, "layers": "rope@32, rope@full"},
        {"sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"]},
    ),
}


@pytest.mark.parametrize("name", WINDOWED)
def test_windows_train_as_they_are(command: Command, source: Callable[..., Path], tmp_path: Path, name: str) -> None:
    """The import's own check compares logits of samples longer than the window with those of transformers."""
    fields, expected, exported = WINDOWED[name]
    record = import_model(source(name, **fields), tmp_path / "import", "rope", 128)
    assert record.difference < LIMIT
    model = load_config(tmp_path / "import" / "config.json", DATA_AND_STEPS).model
    assert {field: getattr(model, field) for field in expected} == expected
    assert command("export", tmp_path / "import", tmp_path / "out")[0] == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {field: config[field] for field in exported} == exported


@pytest.mark.parametrize(("name", "layers"), [("mistral", None), ("qwen2", "tape@full, tape@32")])
def test_another_encoding_has_the_same_windows(
    command: Command, source: Callable[..., Path], tmp_path: Path, name: str, layers: str | None
) -> None:
    """Fresh TAPE computes RoPE, so the import's own check compares the windows as well."""
    fields, _, _ = WINDOWED[name]
    record = import_model(source(name, **fields), tmp_path / "import", "tape", 128)
    assert record.difference < LIMIT
    model = load_config(tmp_path / "import" / "config.json", DATA_AND_STEPS).model
    assert model.layers == layers
    assert command("export", tmp_path / "import", tmp_path / "out")[0] == 0


def test_scaling_is_not_kept_where_nothing_rotates(command: Command, source: Callable[..., Path], tmp_path: Path) -> None:
    status, printed, errors = command("import", source("llama3"), tmp_path / "import", "--encoding", "alibi")
    assert status == 0, errors
    assert "the scaling of rotary frequencies is not kept: alibi has none of these" in printed, errors
    assert load_config(tmp_path / "import" / "config.json", ["data.path=D", "training.steps=1"]).model.scaling is None


@pytest.fixture
def imported_llama(source: Callable[..., Path], tmp_path: Path) -> Path:
    import_model(source("llama"), tmp_path / "import", "rope", None)
    return tmp_path / "import"


def export_errors(command: Command, folder: Path, out: Path, *options: object) -> str:
    """Return the errors of an export that must fail without writing anything."""
    status, _, errors = command("export", folder, out, *options)
    assert status == 2
    assert not out.exists()
    return errors


def test_an_import_is_not_exported_as_an_adapter(command: Command, imported_llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert f"--adapter: {imported_llama} is an import" in export_errors(command, imported_llama, out, "--adapter")
    errors = export_errors(command, imported_llama, out, "--base", tmp_path / "llama")
    assert f"--base: {imported_llama} is an import" in errors


def test_a_source_is_not_exported(command: Command, source: Callable[..., Path], tmp_path: Path) -> None:
    folder = source("llama")
    errors = export_errors(command, folder, tmp_path / "out")
    assert f"{folder} is in transformers' format already: `megatape import` it" in errors


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"num_layers": 3}, "it lacks blocks.2"), ({"lora": {"rank": 2, "alpha": 2.0}}, "training.trainable")],
    ids=["more layers", "lora"],
)
def test_weights_missing_in_the_source_are_not_drawn(
    command: Command, imported_llama: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = imported_llama / "config.json"
    raw = json.loads(path.read_text())
    change_fields(path, model=raw["model"] | changes)
    assert message in export_errors(command, imported_llama, tmp_path / "out")


def test_an_import_of_a_changed_source_is_not_exported(command: Command, imported_llama: Path, tmp_path: Path) -> None:
    flip_byte(tmp_path / "llama" / "model.safetensors")
    errors = export_errors(command, imported_llama, tmp_path / "out")
    assert "model.safetensors has changed since it was imported" in errors


def test_an_encoding_of_ones_own(command: Command, source: Callable[..., Path], tmp_path: Path, own_modules: None) -> None:
    """The encoding's module is recorded, so that an export asks for it instead of failing on an unknown encoding."""
    module = Path(__file__).parents[3] / "examples" / "forgetting.py"
    module_words = ("--import", module)
    words = (source("llama"), tmp_path / "import", "--encoding", "forgetting", *module_words)

    status, printed, errors = command("import", *words)

    assert status == 0, errors
    assert "with forgetting the model starts with other logits than the source's" in printed, errors
    assert command("export", tmp_path / "import", tmp_path / "out", *module_words)[0] == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["imports"] == [str(module)]

"""Exported folders: their files, running them without megatape, and refused exports."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.dynamic_module_utils import get_relative_import_files, get_relative_imports

from megatape.checkpoint.load.reader import CheckpointReader
from megatape.config import parse_config
from megatape.hf.exporting.exporter import export
from megatape.hf.exporting.model_card import TrainingSummary, model_card
from megatape.hf.families import family_of
from megatape.hf.families.exported_model import ExportedModel
from megatape.hf.special_tokens import SpecialTokens
from megatape.model.build import build_model
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.exports import Exported
from tests.helpers.models.memory_checkpoint import MemoryCheckpoint, memory_checkpoint
from tests.helpers.processes.command import Command
from tests.helpers.processes.load import scaled
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.training_cases import TRAIN_CASES

COMMON = {
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


def test_files(exported: Callable[..., Exported]) -> None:
    tape = exported("grouped").folder
    rope = exported("grouped", "rope").folder
    model = {
        "configuration_tape.py",
        "modeling_tape.py",
        "attention.py",
        "attention_layer.py",
        "cache.py",
        "cache_buffer.py",
        "cache_layers.py",
        "encodings.py",
        "layer_pattern.py",
        "layers.py",
        "new_tokens.py",
        "positions.py",
        "windows.py",
    }
    model |= {"encoding.py", "bias.py", "rotation.py", "log_scale.py", "stand_ins.py"}
    assert {path.name for path in tape.iterdir()} == COMMON | model | {"tape.py", "rope.py"}
    assert {path.name for path in exported("grouped", "fire").folder.iterdir()} == COMMON | model | {"fire.py"}
    vector = {path.name for path in exported("grouped", "tape_vector").folder.iterdir()}
    assert vector == COMMON | model | {"tape_ablations.py", "tape.py", "rope.py"}
    assert {path.name for path in rope.iterdir()} == COMMON
    config = json.loads((tape / "config.json").read_text())
    assert config["auto_map"]["AutoModelForCausalLM"] == "modeling_tape.TapeForCausalLM"
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 10000.0}
    assert (config["model_type"], config["dtype"], config["position_size"]) == ("tape", "float32", 6)
    config = json.loads((rope / "config.json").read_text())
    assert (config["model_type"], config["num_key_value_heads"]) == ("llama", 2)
    assert "auto_map" not in config
    assert "position_size" not in config


def test_generation_settings(exported: Callable[..., Exported]) -> None:
    settings = GenerationConfig.from_pretrained(exported("plain").folder)
    assert (settings.bos_token_id, settings.eos_token_id, settings.pad_token_id) == (1, 2, 0)
    assert settings.do_sample is False


def test_model_card(exported: Callable[..., Exported]) -> None:
    tape = exported("grouped")
    card = (tape.folder / "README.md").read_text()
    num_parameters = sum(weight.numel() for weight in tape.ours.parameters())
    assert f"| parameters | {num_parameters:,} |" in card
    assert "| trained on | 1,234 tokens, 7 steps |" in card
    assert "trust_remote_code=True" in card
    assert "position size" in card
    rope = (exported("grouped", "rope").folder / "README.md").read_text()
    assert "trust_remote_code" not in rope
    assert "position size" not in rope


@pytest.mark.parametrize(
    ("samples", "init_from", "base"), [("packed", None, True), ("packed", "weights", False), ("examples", None, False)]
)
def test_the_card_calls_no_other_model_a_base_model(
    raw_config: dict[str, Any], samples: str, init_from: str | None, base: bool
) -> None:
    """Other weights were trained in unknown ways, and examples may be instructions."""
    raw_config["data"]["samples"] = samples
    raw_config["training"]["init_from"] = init_from
    config = parse_config(raw_config, "config")
    exported = ExportedModel.of_run(config, SpecialTokens(1, 2, 0))
    card = model_card(exported, family_of(exported.model), TrainingSummary(7, 1234, init_from, samples), "")
    assert ("It is a base model: it continues text and has had no\ninstruction tuning" in card) == base
    assert ("from the weights of another model" in card) == bool(init_from)


@pytest.mark.parametrize("encoding", ["tape_vector", "path_fox"])
@pytest.mark.parametrize("entry", ["configuration_tape.py", "modeling_tape.py"])
def test_entry_points_name_every_file_that_they_need(exported: Callable[..., Exported], encoding: str, entry: str) -> None:
    """transformers before 5.10.1 only copies the files named in the file that it loads."""
    path = exported("grouped", encoding).folder / entry
    needed = {Path(file).stem for file in get_relative_import_files(path)}
    assert "stand_ins" in needed
    assert set(get_relative_imports(path)) == needed


# Runs alone: -I keeps out this project, its folder and PYTHONPATH, and an installed megatape is blocked.
ALONE = """
import json, sys
sys.modules["megatape"] = None
sys.path[:0] = sys.argv[3:]  # folders with other versions of packages
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, tokens = sys.argv[1], json.loads(sys.argv[2])
import torch
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
with torch.no_grad():
    logits = model(torch.tensor(tokens)).logits
text = tokenizer("the fox <s>")
assert not [name for name, module in sys.modules.items() if name.startswith("megatape") and module]
import transformers
found = {"class": type(model).__name__, "transformers": transformers.__version__}
print(json.dumps(found | {"logits": logits.tolist(), "ids": text.input_ids}))
"""


def run_alone(exported_model: Exported, tokens: Tensor, tmp_path: Path, *folders: Path) -> subprocess.CompletedProcess[str]:
    """Load an export in a process without megatape, with packages from `folders` first, and run it on tokens [B, N]."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-I", "-c", ALONE, str(exported_model.folder), json.dumps(tokens.tolist()), *map(str, folders)],
        cwd=tmp_path,
        env=environment | {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules"), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=scaled(120),
    )


def check_alone(exported_model: Exported, tmp_path: Path, *folders: Path) -> dict[str, Any]:
    """Check that an export's logits, computed without megatape, equal those of training. Return the process's findings."""
    tokens = torch.arange(3, 33).view(2, 15)
    result = run_alone(exported_model, tokens, tmp_path, *folders)
    assert result.returncode == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    assert answer["ids"][0] == 1
    assert 1 not in answer["ids"][1:]
    with torch.no_grad():
        expected = exported_model.ours(tokens, torch.arange(15).expand(2, 15))
    assert_close(torch.tensor(answer["logits"]), expected, bounds.EXPORTED)
    return answer


@pytest.mark.parametrize(
    ("shape", "encoding", "kind"),
    [
        ("grouped", "tape", "TapeForCausalLM"),
        pytest.param("features", "tape", "TapeForCausalLM", marks=pytest.mark.slow),
        pytest.param("grouped", "rope", "LlamaForCausalLM", marks=pytest.mark.slow),
        pytest.param("features", "rope", "Qwen3ForCausalLM", marks=pytest.mark.slow),
    ],
)
def test_loads_without_megatape(
    exported: Callable[..., Exported], shape: str, encoding: str, kind: str, tmp_path: Path
) -> None:
    assert check_alone(exported(shape, encoding), tmp_path)["class"] == kind


@pytest.mark.slow
@pytest.mark.oldest
@pytest.mark.parametrize("encoding", ["tape", "rope", "path_fox", "fire"])
def test_loads_with_the_oldest_transformers_of_its_card(
    exported: Callable[..., Exported], encoding: str, tmp_path: Path
) -> None:
    oldest_export = exported("grouped", encoding)
    answer = check_alone(oldest_export, tmp_path, Path(os.environ["MEGATAPE_OLDEST"]).absolute())
    card = (oldest_export.folder / "README.md").read_text()
    oldest = answer["transformers"].removesuffix(".0")
    assert f"PyTorch and transformers {oldest} or later" in card


@pytest.mark.slow
def test_an_older_transformers_is_refused_in_a_sentence(exported: Callable[..., Exported], tmp_path: Path) -> None:
    """The version comes from the first package metadata on the search path, which this test provides."""
    metadata = tmp_path / "packages" / "transformers-5.3.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 5.3.0\n")
    result = run_alone(exported("grouped"), torch.ones(1, 2, dtype=torch.int64), tmp_path, tmp_path / "packages")
    assert result.returncode != 0
    assert "transformers>=5.4 is required" in result.stderr
    assert "but found transformers==5.3.0" in result.stderr


@pytest.mark.parametrize("shape", ["grouped", "tied", "odd"])
def test_saving_again_keeps_model_and_code(exported: Callable[..., Exported], shape: str, tmp_path: Path) -> None:
    model = exported(shape).load()
    model.save_pretrained(tmp_path)
    assert (tmp_path / "modeling_tape.py").is_file()
    again = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    tokens = torch.arange(3, 33).view(2, 15)
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, model(tokens).logits)


@pytest.fixture
def checkpoint(sentencepiece_model: Path) -> MemoryCheckpoint:
    return memory_checkpoint(sentencepiece_model)[0]


def test_an_existing_folder_is_refused(checkpoint: MemoryCheckpoint, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="exists: remove it or choose another name"):
        export(checkpoint, tmp_path)


def assert_refused(checkpoint: MemoryCheckpoint, out: Path, message: str) -> None:
    """Assert that an export fails and writes nothing."""
    with pytest.raises(ValueError, match=message):
        export(checkpoint, out)
    assert not out.exists()


def test_a_tokenizer_larger_than_the_embedding_is_refused(sentencepiece_model: Path, tmp_path: Path) -> None:
    small, _ = memory_checkpoint(sentencepiece_model, vocab_size=300)
    assert_refused(small, tmp_path / "out", "has 320 tokens, but model.vocab_size is 300")


def test_values_beyond_the_precision_are_refused(checkpoint: MemoryCheckpoint, tmp_path: Path) -> None:
    checkpoint.weights["norm.weight"] = torch.full((32,), 1e5)
    checkpoint.config = parse_config(checkpoint.config.model_dump() | {"export": {"dtype": "float16"}}, "test")
    message = "norm.weight has values that torch.float16 cannot hold: export with another `dtype`"
    assert_refused(checkpoint, tmp_path / "out", message)


def test_a_missing_weight_is_refused(checkpoint: MemoryCheckpoint, tmp_path: Path) -> None:
    del checkpoint.weights["blocks.1.position.gain"]
    message = "they differ in blocks.1.position.gain: the checkpoint is corrupted"
    assert_refused(checkpoint, tmp_path / "out", message)


def test_a_weight_of_another_shape_is_refused(checkpoint: MemoryCheckpoint, tmp_path: Path) -> None:
    checkpoint.weights["norm.weight"] = torch.ones(31)
    message = r"norm.weight has shape \(31,\) in the checkpoint, .* says \(32,\)"
    assert_refused(checkpoint, tmp_path / "out", message)


def test_a_folder_named_like_a_temporary_one_is_kept(checkpoint: MemoryCheckpoint, tmp_path: Path) -> None:
    out = tmp_path / "out"
    precious = tmp_path / "out.tmp"
    precious.mkdir()
    (precious / "file").touch()
    export(checkpoint, out)
    assert {path.name for path in out.iterdir()} >= COMMON
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out.tmp"}
    assert (precious / "file").exists()


def test_from_training_to_text(command: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["model"]["num_kv_heads"] = 2
    payload = {"config": raw_config, "cases": [{"name": "trained"}]}
    (results,) = run_workers(TRAIN_CASES, 1, payload, tmp_path / "workers")
    assert "error" not in results[0], results
    checkpoint = next((tmp_path / "run" / "trained").glob("**/step-00000004"))
    out = str(tmp_path / "out")
    code, printed, errors = command("export", str(checkpoint), out)
    assert (code, printed) == (0, f"exported step 4, 1,024 tokens, to {out}\n"), errors
    assert command("export", str(checkpoint), out)[0] == 2
    assert command("export", str(checkpoint), tmp_path / "half", "--dtype", "bfloat16")[0] == 0
    config = json.loads((tmp_path / "half" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    weights = load_file(tmp_path / "half" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}

    reader = CheckpointReader(checkpoint)
    ours = build_model(reader.config.model)
    ours.load_state_dict({name: reader.tensor(name) for name in reader.names()})
    assert ours.blocks[0].position.gain.any()  # training moved it
    model = AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True)
    tokens = torch.arange(3, 33).view(2, 15)
    with torch.no_grad():
        expected = ours(tokens, torch.arange(15).expand(2, 15))
        assert_close(model(tokens).logits, expected, bounds.EXPORTED)

    code, printed, errors = command("generate", out, "--prompt", "abc de", "--max-new-tokens", "5")
    assert code == 0, errors
    assert printed.startswith("abc de")
    assert len(printed) > len("abc de\n")

    # The text starts from <s> alone.
    assert command("generate", out, "--prompt", "")[0] == 0
    assert command("generate", str(checkpoint), "--prompt", "abc de", "--max-new-tokens", "5")[:2] == (0, printed)


def test_command_explains_what_is_no_checkpoint(command: Command, tmp_path: Path) -> None:
    code, printed, errors = command("export", "nowhere", str(tmp_path / "out"))
    assert (code, printed, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("error: nowhere: no such folder")

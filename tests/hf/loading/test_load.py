"""Loading every kind of model folder as one model."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from megatape.data.synthetic.addition_problems import AdditionTask, prepare_addition
from megatape.hf.adapters.export import export_adapter
from megatape.hf.exporting.exporter import export
from megatape.hf.importing.importer import import_model
from megatape.hf.loading.load import load_exported, load_trained
from megatape.model.trainable import freeze
from tests.helpers.checks.slow import slow_but
from tests.helpers.models.adapters import CASES, TOKENS, adapted
from tests.helpers.models.exports import ENCODINGS, SHAPES, Exported
from tests.helpers.models.imported import write_llama3
from tests.helpers.models.memory_checkpoint import memory_checkpoint
from tests.helpers.models.tiny_models import save_tiny
from tests.helpers.processes.command import Command
from tests.helpers.processes.hub import online_environment
from tests.helpers.processes.load import scaled

ROOT = Path(__file__).parents[3]
PAYLOAD = """
import os, pathlib
pathlib.Path(os.environ["MEGATAPE_MARKERS"], {name!r}).touch()
"""
REPOSITORY = "somebody/model--modeling.Model"


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def plant(folder: Path, kind: str) -> None:
    """Add an attack to an exported folder."""
    payload = PAYLOAD.format(name=kind)
    own = "class Model: pass\nclass Tokenizer: pass\n"
    match kind:
        case "modeling" | "configuration":
            path = folder / ("modeling_tape.py" if kind == "modeling" else "configuration_tape.py")
            path.write_text(path.read_text() + payload)
        case "tokenizer":
            (folder / "tokenization_own.py").write_text(payload + own)
            mapping = {"AutoTokenizer": [None, "tokenization_own.Tokenizer"]}
            change(folder / "tokenizer_config.json", auto_map=mapping, tokenizer_class="Tokenizer")
        case "auto_map":
            (folder / "own.py").write_text(payload + own)
            change(folder / "config.json", auto_map={"AutoConfig": "own.Model", "AutoModelForCausalLM": "own.Model"})
        case "repository":
            change(folder / "config.json", auto_map={"AutoConfig": REPOSITORY, "AutoModelForCausalLM": REPOSITORY})
            change(
                folder / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, REPOSITORY]}, tokenizer_class="Tokenizer"
            )
        case "custom_generate":
            (folder / "custom_generate").mkdir()
            (folder / "custom_generate" / "generate.py").write_text(payload + "def generate(*args, **kwargs): pass\n")
        case "adapter":
            change_to = {"peft_type": "LORA", "base_model_name_or_path": "somebody/model"}
            (folder / "adapter_config.json").write_text(json.dumps(change_to))


class Answer(NamedTuple):
    """Result of a command, and the payloads that have run so far."""

    status: int
    output: str
    errors: str
    markers: list[str]


HARMLESS = ("modeling", "configuration", "tokenizer", "auto_map", "repository", "custom_generate", "adapter")


@pytest.fixture(scope="module")
def addition(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Prepare addition data and export a model trained on it."""
    folder = tmp_path_factory.mktemp("addition")
    task = AdditionTask(digits=1, per_cell=20, seed=0)
    prepare_addition(task, folder / "data", lambda tokens: None)
    checkpoint, _ = memory_checkpoint(folder / "data" / "tokenizer.model")
    export(checkpoint, folder / "model")
    return folder / "data", folder / "model"


@pytest.mark.slow
def test_no_code_of_a_folder_runs(addition: tuple[Path, Path], tmp_path: Path) -> None:
    """Both commands meet every attack. An allowed attack comes last and shows that the payloads work."""
    data, model = addition
    plan: dict[str, list[str]] = {}
    for kind in ("clean", *HARMLESS, "kernel", "pickle"):
        folder = tmp_path / kind
        shutil.copytree(model, folder)
        plant(folder, kind)
        plan[f"generate {kind}"] = ["generate", str(folder), "--prompt", "1+2=", "--max-new-tokens", "4"]
        plan[f"evaluate {kind}"] = ["evaluate", "addition", str(folder), "--data", str(data), "--max-digits", "1"]
        plan[f"evaluate {kind}"] += ["--output", str(tmp_path / f"evaluated-{kind}")]
    change(tmp_path / "kernel" / "config.json", attn_implementation="somebody/kernel")
    (tmp_path / "pickle" / "model.safetensors").rename(tmp_path / "pickle" / "pytorch_model.bin")
    markers = tmp_path / "markers"
    markers.mkdir()
    environment = online_environment(
        MEGATAPE_MARKERS=str(markers),
        MEGATAPE_NETWORK=str(tmp_path / "network"),
        HF_HOME=str(tmp_path / "home"),
        HF_MODULES_CACHE=str(tmp_path / "modules"),
        PYTHONPATH=str(ROOT),
    )

    plan["trusted"] = [*plan["generate modeling"], "--trust-remote-code"]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    result = subprocess.run(
        [sys.executable, "-m", "tests.helpers.processes.attack", str(tmp_path / "plan.json")],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=scaled(300),
    )
    assert result.returncode == 0, result.stderr
    answers = {name: Answer(*answer) for name, answer in json.loads(result.stdout.splitlines()[-1]).items()}
    clean = answers["generate clean"]
    assert clean.status == 0
    assert clean.output.startswith("1+2=")
    assert answers["trusted"] == clean._replace(markers=["modeling"], errors=answers["trusted"].errors)
    assert not any(answer.markers for name, answer in answers.items() if name != "trusted")
    assert not (tmp_path / "network").exists()
    for kind in HARMLESS:
        assert answers[f"generate {kind}"] == clean, kind
        evaluated = answers[f"evaluate {kind}"]
        (expected,) = (line for line in answers["evaluate clean"].output.splitlines() if line.startswith("clean: "))
        assert evaluated.status == 0, kind
        assert expected.replace("clean", kind) in evaluated.output.splitlines(), kind
    for command in ("generate", "evaluate"):
        kernel = answers[f"{command} kernel"]
        pickle = answers[f"{command} pickle"]
        assert kernel.status == pickle.status == 2
        assert "key attn_implementation is not known to TapeConfig" in kernel.errors
        assert "no model.safetensors" in pickle.errors


MODELS = [*ENCODINGS, *((shape, "tape") for shape in SHAPES)]


QUICK_MODELS = [model for model in MODELS if model[0] == "grouped"]


def assert_equal_logits(model: PreTrainedModel, expected: PreTrainedModel) -> None:
    tokens = torch.arange(3, 33).view(2, 15)
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, expected(tokens).logits)


@pytest.mark.parametrize(("shape", "encoding"), slow_but(QUICK_MODELS, MODELS))
def test_installed_code_is_that_of_the_folder(exported: Callable[..., Exported], shape: str, encoding: str) -> None:
    export = exported(shape, encoding)
    installed = load_exported(export.folder).model
    own = export.load()
    assert_equal_logits(installed, own)
    assert installed.generation_config.eos_token_id == own.generation_config.eos_token_id


def test_precision_is_that_of_the_folder(exported: Callable[..., Exported]) -> None:
    export = exported("grouped", "tape", precision="bfloat16")
    installed = load_exported(export.folder).model
    assert_equal_logits(installed, export.load())
    assert {weight.dtype for weight in installed.parameters()} == {torch.bfloat16}


def test_installed_tokenizer_is_that_of_the_folder(exported: Callable[..., Exported]) -> None:
    folder = exported("plain").folder
    ours = load_exported(folder).tokenizer
    theirs = AutoTokenizer.from_pretrained(folder)
    texts = ["The fox", " a  b\n\n", "<s> x </s><unk>", "\u2581 é 漢 \U0001f600", "1"]
    assert ours(texts, padding=True).data == theirs(texts, padding=True).data
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.special_tokens_map == theirs.special_tokens_map
    for ids in ours(texts).input_ids:
        assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.model_max_length == theirs.model_max_length


def with_weights(folder: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture
def folder(exported: Callable[..., Exported], tmp_path: Path) -> Path:
    shutil.copytree(exported("plain").folder, tmp_path / "model")
    return tmp_path / "model"


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda tensors: tensors.pop(NORM), f"no tensor {NORM} in its safetensors files"),
        (lambda tensors: tensors.update(more=torch.ones(2)), "tensor more belongs to no parameter of the model"),
        (
            lambda tensors: tensors.update({NORM: torch.ones(31)}),
            rf"tensor {NORM} has shape \(31,\), by config.json it is \(32,\)",
        ),
        (lambda tensors: tensors[NORM][3:4].fill_(float("nan")), f"tensor {NORM} has values that are NaN or infinite"),
        (lambda tensors: tensors[NORM][3:4].fill_(float("-inf")), f"tensor {NORM} has values that are NaN or infinite"),
    ],
)
def test_corrupted_weights(folder: Path, command: Command, edit: Callable[[Any], Any], message: str) -> None:
    with_weights(folder, edit)
    with pytest.raises(ValueError, match=message):
        load_exported(folder)
    assert command("generate", folder, "--prompt", "a")[:2] == (2, "")


def test_corrupted_foreign_weights(folder: Path) -> None:
    with_weights(folder, lambda tensors: tensors.pop(NORM))
    with pytest.raises(ValueError, match=f"missing keys in its weights: {NORM}"):
        load_exported(folder, trust_remote_code=True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"model_type": "gpt2"},
            "model_type is 'gpt2'; only llama, mistral, qwen2, .*: give .* `trust_remote_code`",
        ),
        ({"model_type": ["tape"]}, r"model_type is \['tape'\]"),
        ({"encoding": "other"}, "encoding is 'other', but there is only code for tape, .* nope"),
        ({"encoding": "rope"}, "position.content belongs to no parameter of the model"),
        ({"encoding": "fire"}, "no tensor model.layers.0.self_attn.bias.inner_weight"),
        ({"quantization_config": {}}, "quantization_config is set"),
        ({"num_hidden_layers": 10**9}, "num_layers: must be less than or equal to 4096, got 1000000000"),
        ({"num_hidden_layers": 10**24}, "num_hidden_layers is 10{24}, beyond"),
        ({"hidden_size": 2**31 - 1, "vocab_size": 2**31 - 1}, "config.json"),
        ({"num_attention_heads": 0, "num_key_value_heads": None, "head_dim": None}, "config.json"),
        ({"dtype": "system"}, "dtype is 'system', none of float32"),
        ({"rope_parameters": 3}, "config.json"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": "x"}},
            "config.json: rope_theta is 'x', not a number",
        ),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 10**30}}, "rope_theta is 10{30}, beyond"),
        ({"max_position_embeddings": None}, "max_position_embeddings is None, not an integer"),
        ({"num_hidden_layers": "x"}, "num_hidden_layers is 'x', not an integer"),
        ({"rms_norm_eps": []}, r"rms_norm_eps is \[\], not a number: correct it there"),
        ({"eos_token_id": [1, "x"]}, r"eos_token_id is \[1, 'x'\], not a token id"),
        ({"bos_token_id": {}}, "bos_token_id is {}, not a token id"),
    ],
)
def test_impossible_configurations(folder: Path, fields: dict[str, Any], message: str) -> None:
    change(folder / "config.json", **fields)
    with pytest.raises(ValueError, match=message):
        load_exported(folder)


@pytest.mark.parametrize(
    ("text", "message"), [("[" * 100_000, "nested more than 64 levels"), ("{", "no JSON object"), ("[]", "no JSON object")]
)
def test_a_config_that_is_no_json_object(folder: Path, text: str, message: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match=f"config.json: .*{message}"):
        load_exported(folder)


def test_a_vocabulary_smaller_than_the_tokenizer(folder: Path) -> None:
    """Configuration and weights agree, so only the tokenizer shows the mistake."""
    path = folder / "model.safetensors"
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    weights = load_file(path)
    for name, weight in weights.items():
        if weight.shape[0] == vocab_size:
            weights[name] = weight[:300].contiguous()
    save_file(weights, path, {"format": "pt"})
    change(folder / "config.json", vocab_size=300)
    with pytest.raises(ValueError, match="the tokenizer has .* tokens, the model only 300"):
        load_exported(folder)


@pytest.mark.parametrize(
    ("content", "message"), [({}, "no weight_map"), ({"weight_map": {NORM: "../w.safetensors"}}, "not a plain file name")]
)
def test_corrupted_index(folder: Path, content: dict[str, Any], message: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        load_exported(folder)


def test_truncated_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="model.safetensors: not a safetensors file"):
        load_exported(folder)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer.json", '{"version": "1.0"}', "tokenizer.json: not a tokenizer"),
        ("tokenizer_config.json", '{"eos_token": {"content": 7}}', "eos_token is .*, no token"),
    ],
)
def test_corrupted_tokenizer(folder: Path, name: str, text: str, message: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        load_exported(folder)


def logits(folder: Path, adapter: Path | None = None) -> Tensor:
    with load_trained(folder, adapter=adapter) as loaded, torch.no_grad():
        result: Tensor = loaded.model(TOKENS).logits
    return result


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_models_of_others_and_imports(name: str, tmp_path: Path) -> None:
    """Settings of earlier versions are read, weights keep their stored precision, and an import is the model it refers to."""
    folder = tmp_path / name
    save_tiny(name, folder, dtype=torch.bfloat16, vocab_size=640)
    shutil.copytree(write_llama3(tmp_path / "tokenizer"), folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    earlier = {"rope_theta": rope.pop("rope_theta"), "torch_dtype": config.pop("dtype"), "_name_or_path": "somewhere/else"}
    if name != "llama":
        earlier["rope_scaling"] = rope
    (folder / "config.json").write_text(json.dumps(config | earlier))
    expected = AutoModelForCausalLM.from_pretrained(folder)(TOKENS).logits
    assert expected.dtype == torch.bfloat16
    assert torch.equal(logits(folder), expected)
    # These are the ids in generation_config.json.
    assert load_exported(folder).model.generation_config.eos_token_id == [602, 601]

    import_model(folder, tmp_path / "import", "tape", None)
    assert torch.equal(logits(tmp_path / "import"), expected)
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ValueError, match="tokenizer_config.json has changed since it was imported"):
        logits(tmp_path / "import")


def test_an_adapter_is_merged(sentencepiece_model: Path, tmp_path: Path, command: Command) -> None:
    checkpoint, ours = adapted(sentencepiece_model, **CASES["tape"])
    export_adapter(checkpoint, tmp_path / "adapter")
    export(checkpoint, tmp_path / "merged")
    freeze(ours, CASES["tape"]["trainable"], ())
    trained = {name for name, weight in ours.named_parameters() if weight.requires_grad}
    checkpoint.weights |= {name: checkpoint.weights[name] + 1 for name in trained}
    export(checkpoint, tmp_path / "base", merge=False)
    assert torch.equal(logits(tmp_path / "base", tmp_path / "adapter"), logits(tmp_path / "merged"))
    with load_trained(tmp_path / "base", adapter=tmp_path / "adapter") as loaded:
        assert loaded.name == f"{tmp_path / 'base'} with {tmp_path / 'adapter'}"

    def generated(name: str, *options: object) -> str:
        words = ("--prompt", "The fox", "--max-new-tokens", 20, *options)
        return command("generate", tmp_path / name, *words)[1]

    merged = generated("merged")
    assert generated("base", "--adapter", tmp_path / "adapter") == merged
    assert generated("base") != merged
    with pytest.raises(ValueError, match="merged is not the base of"):
        logits(tmp_path / "merged", tmp_path / "adapter")

"""Importing models of other families: written files, refused sources, and references to the source."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from megatape.config import load_config, parse_model
from megatape.data.tokenizers.files import load_tokenizer
from megatape.hf.exporting.sentencepiece import build_tokenizer, read_proto
from megatape.hf.importing.checkpoint import ImportCheckpoint
from megatape.hf.importing.importer import import_model
from megatape.hf.importing.record import open_import, read_record
from megatape.model.build import build_model
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.tiny_models import MODELS, VOCAB_SIZE, save_tiny
from tests.helpers.processes.command import Command

NORM = "model.norm.weight"
# Precision of the weights of some models. The others are in bfloat16.
DTYPES = {"llama": torch.float16, "mistral": torch.float32}


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """Save a llama in several files, in a folder that the test may change."""
    save_tiny("llama", tmp_path / "llama", shard="40KB")
    return tmp_path / "llama"


def test_import(tiny: Callable[..., Any], command: Command, tmp_path: Path) -> None:
    """The command writes a reference to the source, and a configuration that only lacks data and steps."""
    folder, _ = tiny("mistral")
    out = tmp_path / "out"
    code, printed, errors = command("import", folder, out, "--encoding", "tape", "--length", 128)
    assert code == 0, errors
    assert "mistral: logits differ from transformers' own by" in printed
    assert f"--config {out}/config.json" in printed
    assert {path.name for path in out.iterdir()} == {"config.json", "import.json"}
    config = load_config(out / "config.json", ["data.path=data", "training.steps=3"])
    assert (config.model.encoding, config.data.sequence_length, config.model.max_positions) == ("tape", 128, 256)
    assert (config.training.init_from, config.export.family, config.export.dtype) == (str(out), None, "float32")
    assert config.run.directory == str(out / "run")  # out itself holds a config.json, as a run does
    with pytest.raises(ValueError, match=r"data path and mixture are both missing(?s:.*)training.steps: Field required"):
        load_config(out / "config.json")
    assert command("import", folder, out)[0] == 2
    record = read_record(out)
    assert record.files.keys() == {"config.json", "generation_config.json", "model.safetensors"}

    rope = tmp_path / "rope"
    import_model(folder, rope, "rope", None)
    assert load_config(rope / "config.json", ["data.path=data", "training.steps=3"]).export.family == "mistral"


def test_windows_instructions_and_tokenizers(command: Command, sentencepiece_model: Path, tmp_path: Path) -> None:
    """A window as long as the samples is accepted, instructions to transformers are ignored, and texts use the tokenizer's
    ids.
    """
    folder = tmp_path / "mistral"
    save_tiny("mistral", folder, sliding_window=32)
    change(folder / "config.json", attn_implementation="somebody/kernel", _attn_implementation="somebody/kernel")
    tokenizer = build_tokenizer(read_proto(load_tokenizer(sentencepiece_model)))
    tokenizer.save(str(folder / "tokenizer.json"))
    assert command("import", folder, tmp_path / "out", "--length", 32)[0] == 0
    model = load_config(tmp_path / "out" / "config.json", ["data.path=data", "training.steps=3"]).model
    assert (model.max_positions, model.sliding_window) == (256, 32)
    assert read_record(tmp_path / "out").tokenizer[0] == "tokenizer.json"
    change(folder / "config.json", vocab_size=100)
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        save_file({name: value[:100] if len(value) == VOCAB_SIZE else value for name, value in tensors.items()}, path)
    code, _, errors = command("import", folder, tmp_path / "small", "--length", 32)
    assert code == 2
    assert "tokenizer.json gives a text the id" in errors
    (folder / "tokenizer.json").write_text("{}")
    code, _, errors = command("import", folder, tmp_path / "small", "--length", 32)
    assert code == 2
    assert "tokenizer.json: not a tokenizer" in errors


def test_a_changed_source_is_refused(llama: Path, tmp_path: Path) -> None:
    import_model(llama, tmp_path / "out", "rope", None)
    source = open_import(tmp_path / "out")
    source.verify()
    path = sorted(llama.glob("*.safetensors"))[1]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path.name} has changed since it was imported"):
        source.verify()
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{path.name}: missing, but this folder was imported"):
        source.verify()
    llama.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match="refers to .*llama, which is not there"):
        open_import(tmp_path / "out")
    change(tmp_path / "out" / "import.json", tensors={"x": {"file": 3}})
    with pytest.raises(ValueError, match="import.json: not what `megatape import` writes"):
        open_import(tmp_path / "out")


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
        ("mistral", {"sliding_window": 32}, "sliding_window is 32, shorter than the sequence length 64"),
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1, "layer_types": None},
            "is 32, shorter",
        ),
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
    change(folder / "config.json", **fields)
    with pytest.raises(ValueError, match=message):
        import_model(folder, tmp_path / "out", "rope", 64)
    assert not (tmp_path / "out").exists()


def _edit_index(folder: Path, edit: Callable[[dict[str, str]], Any]) -> None:
    path = folder / "model.safetensors.index.json"
    content = json.loads(path.read_text())
    edit(content["weight_map"])
    path.write_text(json.dumps(content))


def _move_norm(folder: Path) -> None:
    """Store the norm in the first file as well."""
    first = min(folder.glob("*.safetensors"))
    save_file(load_file(first) | {NORM: torch.ones(32)}, first)


def _truncate(folder: Path) -> None:
    first = min(folder.glob("*.safetensors"))
    first.write_bytes(first.read_bytes()[:-100])


def _replace_weights(folder: Path, name: str) -> None:
    for path in [*folder.glob("*.safetensors"), folder / "model.safetensors.index.json"]:
        path.unlink()
    (folder / name).write_bytes(b"x")


def _retype(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        save_file({name: value.to(torch.int8 if name == NORM else value.dtype) for name, value in tensors.items()}, path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_truncate, "safetensors: not a safetensors file"),
        (_move_norm, f"(tensor {NORM} is in .* and in|holds tensor {NORM}, which .* has in)"),
        (lambda folder: _edit_index(folder, lambda index: index.pop(NORM)), f"holds tensor {NORM}, which .* has in no file"),
        (
            lambda folder: _edit_index(folder, lambda index: index.update({NORM: "gone.safetensors"})),
            "no gone.safetensors, which",
        ),
        (lambda folder: _edit_index(folder, lambda index: index.update(other=index[NORM])), "no tensor other, which"),
        (lambda folder: save_file({NORM: torch.ones(3)}, folder / "model.safetensors"), "holds model.safetensors and"),
        (lambda folder: _replace_weights(folder, "pytorch_model.bin"), "pytorch_model.bin holds pickled weights.*convert"),
        (lambda folder: _replace_weights(folder, "consolidated.00.pth"), "Meta's layout: convert"),
        (lambda folder: _replace_weights(folder, "adapter_config.json"), "an adapter, no model"),
        (lambda folder: _replace_weights(folder, "other"), "neither model.safetensors nor"),
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (_retype, f"tensor {NORM} is stored as I8; only"),
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


@pytest.fixture
def source(sentencepiece_model: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function: source("qwen2") is a folder with that model and a tokenizer."""

    def make(name: str, **changes: Any) -> Path:
        save_tiny(name, tmp_path / name, DTYPES.get(name, torch.bfloat16), **changes)
        tokenizer = build_tokenizer(read_proto(load_tokenizer(sentencepiece_model)))
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
        names = {f"{role}_token": token for role, token in (("bos", "<s>"), ("eos", "</s>"), ("unk", "<unk>"))}
        (tmp_path / name / "tokenizer_config.json").write_text(json.dumps(names))
        return tmp_path / name

    return make


@pytest.mark.parametrize("name", MODELS)
def test_an_import_returns_bit_for_bit(command: Command, source: Callable[..., Path], tmp_path: Path, name: str) -> None:
    """Every tensor and setting is unchanged, except special tokens, which come from the tokenizer."""
    folder = source(name)
    for words in (("import", folder, tmp_path / "import"), ("export", tmp_path / "import", tmp_path / "out")):
        assert command(*words)[0] == 0
    ours, theirs = (load_file(each / "model.safetensors") for each in (tmp_path / "out", folder))
    assert ours.keys() == theirs.keys()
    for key, tensor in theirs.items():
        assert ours[key].dtype == tensor.dtype, key
        assert torch.equal(ours[key].view(torch.uint8), tensor.view(torch.uint8)), key
    written, given = (json.loads((each / "config.json").read_text()) for each in (tmp_path / "out", folder))
    assert {key for key in written | given if written.get(key) != given.get(key)} <= {
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "rope_parameters",
    }
    with torch.no_grad():  # yarn's factor of attention is written as one number
        models = [AutoModelForCausalLM.from_pretrained(each).eval() for each in (tmp_path / "out", folder)]
        logits = [model(torch.arange(200)[None]).logits for model in models]
    assert torch.equal(*logits)


@pytest.mark.numerics
def test_with_another_encoding(command: Command, source: Callable[..., Path], tmp_path: Path) -> None:
    """New position weights are those at the start of training, other weights are the source's, in any chosen precision."""
    folder = source("mistral")
    import_model(folder, tmp_path / "import", "tape", None)
    for dtype in ("float32", "bfloat16"):
        assert command("export", tmp_path / "import", tmp_path / dtype, "--dtype", dtype)[0] == 0
    checkpoint = ImportCheckpoint(tmp_path / "import")
    model = build_model(parse_model(checkpoint.config.model.model_dump(), "import"))
    model.load_state_dict({name: checkpoint.tensor(name) for name in checkpoint.names()})
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "float32", trust_remote_code=True)
    tokens = torch.arange(60)[None]
    with torch.no_grad():
        assert_close(exported(tokens).logits, model(tokens, tokens), bounds.EXPORTED)
    weights = load_file(tmp_path / "bfloat16" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert torch.equal(weights["lm_head.weight"], load_file(folder / "model.safetensors")["lm_head.weight"].bfloat16())
    assert any(tensor.any() for name, tensor in weights.items() if ".position." in name)


def test_a_window_is_kept(command: Command, source: Callable[..., Path], tmp_path: Path) -> None:
    """The window shortens the samples, as the command says, and is exported again. No other encoding supports it."""
    folder = source("mistral", sliding_window=32)
    status, printed, _ = command("import", folder, tmp_path / "import")
    assert status == 0
    assert "attention window of 32 tokens: samples have 32, not 256" in printed
    assert command("export", tmp_path / "import", tmp_path / "out")[0] == 0
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (written["sliding_window"], written["max_position_embeddings"]) == (32, 256)
    status, printed, _ = command("import", folder, tmp_path / "tape", "--encoding", "tape", "--length", 16)
    assert status == 0
    assert "the attention window is not kept" in printed
    assert "samples have" not in printed
    assert command("export", tmp_path / "tape", tmp_path / "tape_out")[0] == 0
    plan = ["plan", "--config", tmp_path / "import" / "config.json", "--set", "data.path=D", "--set", "training.steps=9"]
    for setting, message in (
        ("data.sequence_length=64", "64 is longer than model.sliding_window 32"),
        ("model.encoding=tape", "model.sliding_window 32 is for models that are exported as Mistral"),
    ):
        status, _, errors = command(*plan, "--set", setting)
        assert status == 2
        assert message in errors


def test_scaling_is_not_kept_where_nothing_rotates(command: Command, source: Callable[..., Path], tmp_path: Path) -> None:
    status, printed, errors = command("import", source("llama3"), tmp_path / "import", "--encoding", "alibi")
    assert status == 0, errors
    assert "the scaling of rotary frequencies is not kept: alibi has none of these" in printed, errors
    assert load_config(tmp_path / "import" / "config.json", ["data.path=D", "training.steps=1"]).model.scaling is None


def test_imports_that_are_refused(command: Command, source: Callable[..., Path], tmp_path: Path) -> None:
    """Weights missing in the source are never drawn at random, and a changed source is not exported."""
    folder = source("llama")
    import_model(folder, tmp_path / "import", "rope", None)
    out = tmp_path / "out"
    for words, message in ((["--adapter"], "--adapter: "), (["--base", folder], "--base: ")):
        status, _, errors = command("export", tmp_path / "import", out, *words)
        assert status == 2
        assert f"{message}{tmp_path / 'import'} is an import" in errors
    assert f"{folder} is in transformers' format already: `megatape import` it" in command("export", folder, out)[2]
    path = tmp_path / "import" / "config.json"
    raw = json.loads(path.read_text())
    path.write_text(json.dumps(raw | {"model": raw["model"] | {"num_layers": 3}}))
    assert "it lacks blocks.2" in command("export", tmp_path / "import", out)[2]
    path.write_text(json.dumps(raw | {"model": raw["model"] | {"lora": {"rank": 2, "alpha": 2.0}}}))
    assert "training.trainable" in command("export", tmp_path / "import", out)[2]
    path.write_text(json.dumps(raw))
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    assert "model.safetensors has changed since it was imported" in command("export", tmp_path / "import", out)[2]
    assert not out.exists()


def test_an_encoding_of_ones_own(command: Command, source: Callable[..., Path], tmp_path: Path, own_modules: None) -> None:
    """The encoding's module is recorded, so that an export asks for it instead of failing on an unknown encoding."""
    module = Path(__file__).parents[3] / "examples" / "forgetting.py"
    given = ("--import", module)
    status, printed, errors = command("import", source("llama"), tmp_path / "import", "--encoding", "forgetting", *given)
    assert status == 0, errors
    assert "with forgetting the model starts with other logits than the source's" in printed, errors
    assert command("export", tmp_path / "import", tmp_path / "out", *given)[0] == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["imports"] == [str(module)]

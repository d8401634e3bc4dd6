"""Importing models of other families: written files, refused sources, and references to the source."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from megatape.config import load_config, parse_model
from megatape.data.tokenizers.files import load_tokenizer
from megatape.hf.exporting.sentencepiece import build_tokenizer, read_proto
from megatape.hf.importing.check import LIMIT
from megatape.hf.importing.checkpoint import ImportCheckpoint
from megatape.hf.importing.importer import import_model
from megatape.hf.importing.record import open_import, read_record
from megatape.model.build import build_model
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.tiny_models import MODELS, VOCAB_SIZE, save_tiny
from tests.helpers.processes.command import Command
from tests.helpers.runs.run_folders import flip_byte

NORM = "model.norm.weight"
INDEX = "model.safetensors.index.json"
# Settings missing in an import's configuration
DATA_AND_STEPS = ["data.path=data", "training.steps=3"]
# Model -> precision of its weights. All others are in bfloat16.
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

    status, printed, errors = command("import", folder, out, "--encoding", "tape", "--length", 128)

    assert status == 0, errors
    assert "mistral: logits differ from transformers' own by" in printed
    assert f"--config {out}/config.json" in printed
    assert {path.name for path in out.iterdir()} == {"config.json", "import.json"}
    config = load_config(out / "config.json", DATA_AND_STEPS)
    assert (config.model.encoding, config.data.sequence_length, config.model.max_positions) == ("tape", 128, 256)
    assert (config.training.init_from, config.export.family, config.export.dtype) == (str(out), None, "float32")
    assert config.run.directory == str(out / "run")  # out itself holds a config.json, as a run does
    with pytest.raises(ValueError, match=r"data path and mixture are both missing(?s:.*)training.steps: Field required"):
        load_config(out / "config.json")
    assert read_record(out).files.keys() == {"config.json", "generation_config.json", "model.safetensors"}


def test_an_import_is_not_overwritten(tiny: Callable[..., Any], command: Command, tmp_path: Path) -> None:
    folder, _ = tiny("mistral")
    import_model(folder, tmp_path / "out", "rope", None)
    assert command("import", folder, tmp_path / "out")[0] == 2


def test_an_import_with_rotary_positions_keeps_its_family(tiny: Callable[..., Any], tmp_path: Path) -> None:
    folder, _ = tiny("mistral")
    import_model(folder, tmp_path / "out", "rope", None)
    assert load_config(tmp_path / "out" / "config.json", DATA_AND_STEPS).export.family == "mistral"


@pytest.fixture
def windowed_mistral(sentencepiece_model: Path, tmp_path: Path) -> Path:
    """Save a mistral with an attention window of 32 and a tokenizer."""
    folder = tmp_path / "mistral"
    save_tiny("mistral", folder, sliding_window=32)
    tokenizer = build_tokenizer(read_proto(load_tokenizer(sentencepiece_model)))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_a_window_is_imported(windowed_mistral: Path, command: Command, tmp_path: Path) -> None:
    """Settings that would make transformers load other code are ignored."""
    change(windowed_mistral / "config.json", attn_implementation="somebody/kernel", _attn_implementation="somebody/kernel")
    out = tmp_path / "out"
    assert command("import", windowed_mistral, out, "--length", 32)[0] == 0
    model = load_config(out / "config.json", DATA_AND_STEPS).model
    assert (model.max_positions, model.sliding_window) == (256, 32)
    assert read_record(out).tokenizer[0] == "tokenizer.json"


def test_a_tokenizer_larger_than_the_embedding_is_refused(windowed_mistral: Path, command: Command, tmp_path: Path) -> None:
    change(windowed_mistral / "config.json", vocab_size=100)
    for path in windowed_mistral.glob("*.safetensors"):
        tensors = load_file(path)
        for name, tensor in tensors.items():
            if len(tensor) == VOCAB_SIZE:
                tensors[name] = tensor[:100]
        save_file(tensors, path)
    status, _, errors = command("import", windowed_mistral, tmp_path / "out", "--length", 32)
    assert status == 2
    assert "tokenizer.json gives a text the id" in errors


def test_a_file_that_is_no_tokenizer_is_refused(windowed_mistral: Path, command: Command, tmp_path: Path) -> None:
    (windowed_mistral / "tokenizer.json").write_text("{}")
    status, _, errors = command("import", windowed_mistral, tmp_path / "out", "--length", 32)
    assert status == 2
    assert "tokenizer.json: not a tokenizer" in errors


@pytest.fixture
def imported(llama: Path, tmp_path: Path) -> Path:
    import_model(llama, tmp_path / "out", "rope", None)
    return tmp_path / "out"


def test_a_changed_source_is_refused(llama: Path, imported: Path) -> None:
    source = open_import(imported)
    source.verify()
    path = sorted(llama.glob("*.safetensors"))[1]
    flip_byte(path)
    with pytest.raises(ValueError, match=f"{path.name} has changed since it was imported"):
        source.verify()
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{path.name}: missing, but this folder was imported"):
        source.verify()


def test_a_moved_source_is_refused(llama: Path, imported: Path, tmp_path: Path) -> None:
    llama.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match="refers to .*llama, which is not there"):
        open_import(imported)


def test_a_damaged_import_is_refused(imported: Path) -> None:
    change(imported / "import.json", tensors={"x": {"file": 3}})
    with pytest.raises(ValueError, match="import.json: not what `megatape import` writes"):
        open_import(imported)


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
    change(folder / "config.json", **fields)
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
    change(folder / INDEX, weight_map=index)


def _name_a_missing_file(folder: Path) -> None:
    change(folder / INDEX, weight_map=_read_index(folder) | {NORM: "gone.safetensors"})


def _name_a_missing_tensor(folder: Path) -> None:
    index = _read_index(folder)
    change(folder / INDEX, weight_map=index | {"other": index[NORM]})


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


@pytest.fixture
def source(sentencepiece_model: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function: source("qwen2") is a folder with that model and a tokenizer."""

    def save(name: str, **changes: Any) -> Path:
        folder = tmp_path / name
        save_tiny(name, folder, DTYPES.get(name, torch.bfloat16), **changes)
        tokenizer = build_tokenizer(read_proto(load_tokenizer(sentencepiece_model)))
        tokenizer.save(str(folder / "tokenizer.json"))
        tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
        return folder

    return save


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
    change(path, model=raw["model"] | changes)
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

"""Importing models of other families: written files, and references to the source."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from megatape.config import load_config
from megatape.data.tokenizers.files import load_tokenizer
from megatape.hf.exporting.sentencepiece import build_tokenizer, read_proto
from megatape.hf.importing.importer import import_model
from megatape.hf.importing.record import open_import, read_record
from tests.helpers.data.json_edits import change_fields
from tests.helpers.models.tiny_models import VOCAB_SIZE, save_tiny
from tests.helpers.processes.command import Command
from tests.helpers.runs.run_folders import flip_byte

# Settings missing in an import's configuration
DATA_AND_STEPS = ["data.path=data", "training.steps=3"]


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
    change_fields(
        windowed_mistral / "config.json", attn_implementation="somebody/kernel", _attn_implementation="somebody/kernel"
    )
    out = tmp_path / "out"
    assert command("import", windowed_mistral, out, "--length", 32)[0] == 0
    model = load_config(out / "config.json", DATA_AND_STEPS).model
    assert (model.max_positions, model.sliding_window) == (256, 32)
    assert read_record(out).tokenizer[0] == "tokenizer.json"


def test_a_tokenizer_larger_than_the_embedding_is_refused(windowed_mistral: Path, command: Command, tmp_path: Path) -> None:
    change_fields(windowed_mistral / "config.json", vocab_size=100)
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
    change_fields(imported / "import.json", tensors={"x": {"file": 3}})
    with pytest.raises(ValueError, match="import.json: not what `megatape import` writes"):
        open_import(imported)

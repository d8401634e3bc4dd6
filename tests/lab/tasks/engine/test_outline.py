"""Outlines, which are read without weights, equal the loaded models for every kind of folder."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from megatape.hf.adapters.export import export_adapter
from megatape.hf.exporting.exporter import export
from megatape.hf.importing.importer import import_model
from megatape.hf.loading.load import load_trained
from megatape.lab.tasks.engine.loading import LoadingOptions
from megatape.lab.tasks.engine.outline import read_outline
from tests.helpers.models.adapters import CASES, adapted
from tests.helpers.models.imported import write_llama3
from tests.helpers.models.tiny_models import save_tiny
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import Workers
from tests.helpers.runs.run_folders import flip_byte

TEXTS = ["The fox  jumps.", "", " 12345\n<|end_of_text|></s>", " a<|begin|>b<|end|>"]


def assert_outline_equals_model(folder: Path, adapter: Path | None = None, **options: Any) -> None:
    """Compare names, limits and token ids. If they differed, examples would be made for another model."""
    outline = read_outline(folder, LoadingOptions(adapter=adapter, **options))
    with load_trained(folder, adapter=adapter, **options) as model:
        assert outline.name == model.name
        assert outline.vocab_size == model.vocab_size
        assert outline.max_positions == model.max_positions
        assert len(outline.tokenizer) == len(model.tokenizer)
        for text in TEXTS:
            ids = model.tokenizer(text).input_ids
            assert outline.tokenizer(text).input_ids == ids
            assert outline.tokenizer.decode(ids) == model.tokenizer.decode(ids)


def test_outline_of_an_export_with_and_without_an_adapter(data_directory: Path, tmp_path: Path) -> None:
    checkpoint, _ = adapted(data_directory / "tokenizer.model", **CASES["tape"])
    export_adapter(checkpoint, tmp_path / "adapter")
    export(checkpoint, tmp_path / "base", merge=False)

    assert_outline_equals_model(tmp_path / "base")
    assert_outline_equals_model(tmp_path / "base", tmp_path / "adapter")


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_outline_of_a_public_model_and_of_its_import(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    save_tiny(name, folder, vocab_size=640)
    shutil.copytree(write_llama3(tmp_path / "tokenizer"), folder, dirs_exist_ok=True)
    import_model(folder, tmp_path / "import", "tape", None)

    assert_outline_equals_model(folder)
    assert_outline_equals_model(folder, trust_remote_code=True)
    assert_outline_equals_model(tmp_path / "import")


def test_outline_of_a_checkpoint(command: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    """A corrupted one is refused before any data is read."""
    raw_config["training"]["steps"] = 1
    config = tmp_path / "config.json"
    config.write_text(json.dumps(raw_config))
    with Workers(["pretrain", "--config", str(config)], 1, tmp_path / "workers") as workers:
        assert workers.statuses() == [0], workers.logs()
    checkpoint = Path(raw_config["run"]["directory"]) / "checkpoints" / "step-00000001"
    assert_outline_equals_model(checkpoint)

    flip_byte(next(checkpoint.glob("*.safetensors")))
    words = ("evaluate", "perplexity", checkpoint, "--data", tmp_path / "gone", "--output", tmp_path / "out")
    status, printed, errors = command(*words)

    assert status == 2
    assert printed == ""
    assert "its sha256 is not the one in the manifest" in errors

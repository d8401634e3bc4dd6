"""Merging of exported adapters into their base."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from megatape.hf.adapters.export import export_adapter
from megatape.hf.exporting.exporter import export
from megatape.hf.importing.importer import import_model
from megatape.model.trainable import freeze
from tests.helpers.models.adapters import CASES, adapted
from tests.helpers.processes.command import Command

pytestmark = pytest.mark.numerics


@pytest.mark.parametrize("case", ["tape", "tied", "biased"])
def test_an_adapter_knows_its_base(sentencepiece_model: Path, tmp_path: Path, command: Command, case: str) -> None:
    """Merging gives the merged export, bit for bit in float32. Other bases are refused, even with the same shapes."""
    checkpoint, ours = adapted(sentencepiece_model, **CASES[case])
    export_adapter(checkpoint, tmp_path / "adapter")
    export(checkpoint, tmp_path / "merged")
    freeze(ours, CASES[case]["trainable"], ())
    trained = {name for name, weight in ours.named_parameters() if weight.requires_grad}
    checkpoint.weights |= {name: checkpoint.weights[name] + 1 for name in trained}
    export(checkpoint, tmp_path / "base", merge=False)
    status, _, errors = command("export", tmp_path / "adapter", tmp_path / "out", "--base", tmp_path / "base")
    assert status == 0, errors
    assert_equal_folders(tmp_path / "out", tmp_path / "merged")

    name = "blocks.1.mlp.down.weight"
    checkpoint.weights[name] = checkpoint.weights[name].clone()
    checkpoint.weights[name][-1, -1] += 1e-3
    export(checkpoint, tmp_path / "changed", merge=False)
    export(adapted(sentencepiece_model, ["adapters"], encoding="rope", num_layers=3)[0], tmp_path / "deep", merge=False)
    for base, told in {
        "changed": "changed is not the base of .*: model.layers.1.mlp.down_proj.weight has other values in float32",
        "deep": "deep is not the base of",
        "merged": "merged is not the base of",
    }.items():
        status, _, errors = command("export", tmp_path / "adapter", tmp_path / "none", "--base", tmp_path / base)
        assert status == 2, errors
        assert errors.count("\n") == 1, errors
        assert re.search(told, errors), errors
    assert "give --base DIR" in command("export", tmp_path / "adapter", tmp_path / "none")[2]
    (tmp_path / "adapter" / "base.json").unlink()
    assert "no base.json" in command("export", tmp_path / "adapter", tmp_path / "none", "--base", tmp_path / "base")[2]
    assert not list(tmp_path.glob("none*"))


def test_an_import_stands_for_its_base(sentencepiece_model: Path, tmp_path: Path, command: Command) -> None:
    checkpoint, _ = adapted(sentencepiece_model, **CASES["adapters"])
    export_adapter(checkpoint, tmp_path / "adapter")
    export(checkpoint, tmp_path / "merged")
    export(checkpoint, tmp_path / "base", merge=False)
    import_model(tmp_path / "base", tmp_path / "import", "rope", None)
    status, _, errors = command("export", tmp_path / "adapter", tmp_path / "out", "--base", tmp_path / "import")
    assert status == 0, errors
    assert_equal_folders(tmp_path / "out", tmp_path / "merged")


def assert_equal_folders(found: Path, expected: Path) -> None:
    """Assert that two folders have the same files and tensors. The layout of config.json may differ."""
    assert {path.name for path in found.iterdir()} == {path.name for path in expected.iterdir()}
    ours, theirs = (json.loads((folder / "config.json").read_text()) for folder in (found, expected))
    assert ours == theirs
    tensors, others = (load_file(folder / "model.safetensors") for folder in (found, expected))
    assert tensors.keys() == others.keys()
    different = [name for name, value in others.items() if not torch.equal(tensors[name], value)]
    assert different == []

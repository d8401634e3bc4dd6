"""Exported weights in several files."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from megatape.hf.exporting.exporter import export
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.exports import SHAPES
from tests.helpers.models.memory_checkpoint import memory_checkpoint

pytestmark = pytest.mark.numerics


@pytest.mark.parametrize("shape", ["grouped", "tied"])
def test_shards(shape: str, sentencepiece_model: Path, tmp_path: Path) -> None:
    """Every parameter is in one shard, only a shard with a single tensor exceeds the limit, and the export loads."""
    limit = 20_000
    checkpoint, ours = memory_checkpoint(sentencepiece_model, num_layers=11, **SHAPES[shape])
    export(checkpoint, tmp_path / "out", shard_bytes=limit)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 5
    stored: dict[str, str] = {}
    for path in files:
        with safe_open(path, framework="pt") as file:
            sizes = {name: file.get_tensor(name).numel() * 4 for name in file.keys()}  # noqa: SIM118 (no mapping)
        if len(sizes) > 1:  # a single tensor may be larger than the limit
            assert sum(sizes.values()) <= limit
        stored |= dict.fromkeys(sizes, path.name)
    assert index["weight_map"] == stored
    assert index["metadata"]["total_size"] == sum(4 * weight.numel() for weight in ours.parameters())
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
    tokens = torch.arange(3, 33).view(2, 15)
    with torch.no_grad():
        expected = ours(tokens, torch.arange(15).expand(2, 15))
        assert_close(model(tokens).logits, expected, bounds.EXPORTED)
